"""One hour of speech, or more, through a Parakeet model in one pass, with full relative attention.

    python examples/one_hour_of_speech.py MODEL AUDIO         # text, a line a phrase, with its time
    python examples/one_hour_of_speech.py                     # a proof without either
    torchrun --nproc-per-node 2 examples/one_hour_of_speech.py [MODEL AUDIO]     # on two devices

MODEL is a Parakeet of transformers (CTC, RNN-T or TDT), by its folder or its name on the hub;
AUDIO any file that soundfile reads. Without them an encoder with random weights (24 layers of width
1024, as Parakeets of 0.6 billion parameters have) takes 45,000 frames of 80 ms, and its time and
peak memory are printed.
Under torchrun each process has some of the frames, and some of the weights of each layer. On Linux
set MALLOC_MMAP_THRESHOLD_=65536: else glibc keeps the weights that a layer has whole for a while.

Needs the extra `speech`: `pip install ".[speech]"` in a copy of relpos.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, distributed, nn
from tqdm import tqdm

from relpos.adapters import adapt

SIZES = {
    "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096,
    "num_mel_bins": 80, "subsampling_conv_channels": 256,
}  # fmt: skip
MOST_FRAMES = 10_000_000  # nine days
PAUSE = 0.8  # seconds between words that begin a new line
LINE = 12.0  # seconds of a line at most

Word = tuple[str, float]  # and when it begins, in seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog='pip install "relpos[speech]"'
    )
    parser.add_argument("model", nargs="?", help="a folder, or a name on the hub")
    parser.add_argument("audio", nargs="?", type=Path, help="a file of any length")
    parser.add_argument("--frames", type=int, default=45_000, help="of the proof, 80 ms each")
    parser.add_argument("--layers", type=int, default=24, help="of the proof (24)")
    parser.add_argument("--width", type=int, default=1024, help="of the proof (1024)")
    parser.add_argument("--json", type=Path, help="where the proof writes its figures")
    options = parser.parse_args()
    if options.model is None:
        for name, least in (("frames", 8), ("layers", 1), ("width", 64)):
            if getattr(options, name) < least:
                parser.error(f"--{name}: must be at least {least}, got {getattr(options, name)}")
        if options.width % 64:
            parser.error(f"--width: must be a multiple of 64, got {options.width}")
        if options.frames > MOST_FRAMES:
            parser.error(f"--frames: must be at most {MOST_FRAMES}, got {options.frames}")
        if options.json is not None and (options.json.is_dir() or not options.json.parent.is_dir()):
            parser.error(f"--json: must be a file in a folder that is there, got {options.json}")
        with devices():
            prove(options.frames, options.layers, options.width, options.json)
        return
    if options.audio is None or not options.audio.is_file():
        parser.error(f"AUDIO: must be a file, got {options.audio}")
    try:
        with devices():
            for line in transcribe(options.model, options.audio):
                say(line)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        parser.error(" ".join(str(error).split()))


@contextmanager
def devices() -> Iterator[None]:
    """The processes that torchrun started as one group; without it this process alone."""
    if not distributed.is_torchelastic_launched():
        yield
        return
    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def say(line: str) -> None:
    """Print a line, in one process of them all."""
    if rank() == 0:
        print(line, flush=True)


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def ranks() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def share(encoder: nn.Module) -> None:
    """Cut frames and weights among the processes, if there are several."""
    if ranks() == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from relpos.distributed import ContextParallel

    mesh = init_device_mesh("cpu", (ranks(),))
    ContextParallel(layout="contiguous").apply_to(encoder, mesh)
    for layer in encoder_layers(encoder):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)


def transcribe(name: str, path: Path) -> Iterator[str]:
    """Lines of text, each with the time at which it begins."""
    processor, model = load(name)
    rate = processor.feature_extractor.sampling_rate
    inputs = processor(read_audio(path, rate), sampling_rate=rate)
    share(encoder_of(model))
    with torch.no_grad(), progress(encoder_layers(model)):
        generated = model.generate(**inputs, return_dict_in_generate=True)
    yield from lines(words(processor, model, generated))


def load(name: str) -> tuple[Any, Any]:
    """The processor and the adapted model, from a folder or from the hub."""
    config = transformers.AutoConfig.from_pretrained(name)
    named = config.architectures or ["none"]
    architecture = str(named[0] if isinstance(named, list) else named)
    cls = getattr(transformers, architecture, None)
    if cls is None or not architecture.startswith("Parakeet"):
        raise ValueError(f"MODEL: must be a Parakeet model, got {architecture}")
    model = cls.from_pretrained(name).eval()
    report = adapt(model)
    if rank() == 0:
        print(report, file=sys.stderr)
    return transformers.AutoProcessor.from_pretrained(name), model


def read_audio(path: Path, rate: int) -> Any:
    """The mean of the channels at `rate` samples a second."""
    import soundfile
    import soxr

    samples, found = soundfile.read(path, dtype="float32", always_2d=True)
    if not len(samples):
        raise ValueError(f"AUDIO: must hold samples, got none in {path}")
    mono = samples.mean(1)
    return mono if found == rate else soxr.resample(mono, found, rate)


def words(processor: Any, model: Any, generated: Any) -> list[Word]:
    """What was said and when, from what `generate` returned for one recording."""
    extractor = processor.feature_extractor
    encoder = getattr(model.config, "encoder_config", model.config)
    seconds = extractor.hop_length / extractor.sampling_rate * encoder.subsampling_factor
    if getattr(generated, "durations", None) is not None:
        _, (tokens,) = processor.decode(generated.sequences, durations=generated.durations)
        pieces = [(token["token"], token["start"]) for token in tokens]
    else:
        pieces = ctc_pieces(processor.tokenizer, generated.sequences[0].tolist(), seconds)
    found: list[Word] = []
    for text, start in pieces:
        if found and not text.startswith(" "):
            found[-1] = (found[-1][0] + text, found[-1][1])
        else:
            found.append((text.strip(), start))
    return [(text, start) for text, start in found if text]


def ctc_pieces(tokenizer: Any, frames: list[int], seconds: float) -> Iterator[Word]:
    """The tokens of a best path of frames, and when each begins; repeats are one token."""
    from tokenizers.decoders import DecodeStream

    stream, frame = DecodeStream(skip_special_tokens=True), 0
    for token, repeats in groupby(frames):
        start, frame = frame, frame + len(list(repeats))
        if token != tokenizer.pad_token_id:
            text = stream.step(tokenizer._tokenizer, token)
            if text is not None:
                yield text, start * seconds


def lines(found: list[Word]) -> Iterator[str]:
    """Words in lines: a new one after a pause, or when one gets long."""
    line: list[Word] = []
    for word in found:
        if line and (word[1] - line[-1][1] > PAUSE + 0.1 * len(line[-1][0])
                     or word[1] - line[0][1] > LINE):  # fmt: skip
            yield _line(line)
            line = []
        line.append(word)
    if line:
        yield _line(line)


def _line(line: list[Word]) -> str:
    minutes, seconds = divmod(line[0][1], 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"[{hours}:{minutes:02}:{seconds:04.1f}] {' '.join(text for text, _ in line)}"


def encoder_layers(model: nn.Module) -> nn.ModuleList:
    """The layers of the encoder, in a model or by itself."""
    return encoder_of(model).layers


def encoder_of(model: nn.Module) -> Any:
    return next(m for m in model.modules() if isinstance(m, transformers.ParakeetEncoder))


@contextmanager
def progress(layers: nn.ModuleList) -> Iterator[None]:
    """A bar that counts layers while they run; only where someone is watching."""
    bar = tqdm(total=len(layers), unit="layer", disable=not sys.stderr.isatty() or rank() > 0)
    hooks = [layer.register_forward_hook(lambda *_: bar.update()) for layer in layers]
    try:
        yield
    finally:
        bar.close()
        for hook in hooks:
            hook.remove()


def prove(frames: int, layers: int, width: int, out: Path | None) -> None:
    """Run an encoder with random weights; print what it took, and how far off the original is."""
    torch.manual_seed(0)
    sizes = SIZES | {"num_hidden_layers": layers, "hidden_size": width}
    sizes |= {"num_attention_heads": width // 128 or 1, "intermediate_size": 4 * width}
    encoder = transformers.ParakeetEncoder(transformers.ParakeetEncoderConfig(**sizes)).eval()
    for name, parameter in encoder.named_parameters():
        if "bias_u" in name or "bias_v" in name:
            nn.init.normal_(parameter, std=0.1)
    short = torch.randn(1, 8 * min(frames, 500), 80)
    with torch.no_grad():
        original = encoder(short).last_hidden_state
        adapt(encoder)
        share(encoder)
        adapted = encoder(short).last_hidden_state
        apart = float((adapted - original).abs().max() / original.abs().max())
        long = torch.randn(1, 8 * frames, 80)
        mask = torch.ones(1, 8 * frames, dtype=torch.bool)
        seconds, peak = measured(lambda: run(encoder, long, mask))
    figures = {
        "frames": frames, "hours": frames * 0.08 / 3600, "layers": layers, "width": width,
        "minutes": seconds / 60, "peak_gib": largest(peak), "threads": torch.get_num_threads(),
        "difference": apart, "compared_frames": short.shape[1] // 8, "processes": ranks(),
    }  # fmt: skip
    peak = figures["peak_gib"]
    each = "each process" if ranks() > 1 else "the whole process"
    memory = "" if peak is None else f", {peak:.1f} GiB at most ({each})"
    threads = f"{figures['threads']} threads" + f" of each of {ranks()} processes" * (ranks() > 1)
    say(
        f"{frames} frames ({figures['hours']:.2f} hours) through {layers} layers of width {width}: "
        f"{figures['minutes']:.1f} minutes on {threads}{memory}\n"
        f"{figures['compared_frames']} frames through the original: {apart:.1e} apart"
    )
    if out is not None and rank() == 0:
        out.write_text(json.dumps(figures, indent=1) + "\n")


def run(encoder: nn.Module, features: Tensor, mask: Tensor) -> None:
    """One pass with a bar of progress; what comes out must be numbers."""
    with progress(encoder_layers(encoder)):
        output = encoder(features, mask).last_hidden_state
    if not torch.isfinite(output).all():
        raise RuntimeError("the encoder gave infinite numbers or none")


def largest(peak: float | None) -> float | None:
    """The largest peak of all processes."""
    found: list[float | None] = [peak]
    if ranks() > 1:
        found = [None] * ranks()
        distributed.all_gather_object(found, peak)
    return None if None in found else max(x for x in found if x is not None)


def measured(call: Callable[[], None]) -> tuple[float, float | None]:
    """Seconds, and the peak of the process's memory in GiB where the system says it.

    The peak of the call, without what the model took before its weights were cut, where the system
    can forget that.
    """
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status")
    if not status.exists():
        return seconds, None
    (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) / 2**20


if __name__ == "__main__":
    main()
