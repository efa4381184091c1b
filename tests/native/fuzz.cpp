// Random calls of the CPU kernel, for every instruction set of this machine, against the
// definition: the output, the log-sum-exp, and every gradient, each within its error bound.
//
//     fuzz SEEDS [FIRST [threads]]
//
// takes the seeds FIRST..FIRST+SEEDS-1 (FIRST is 0 unless given), with `threads` those alone whose
// call is worth several threads.
//
// Prints nothing and returns 0 if all is well. Otherwise it prints each call that fails, and where;
// `fuzz 1 SEED` makes the same call again. Under a sanitizer, it stops at the first.
//
// Without torch, from this folder (add -fsanitize=address,undefined or -fsanitize=thread):
//
//     g++ -std=c++17 -O2 -g -pthread fuzz.cpp ../../csrc/kernel_*.cpp -o /tmp/fuzz
//
// Inputs end where their memory ends, outputs and what the kernel allocates begin as NaN, memory
// may run out, and threads are real ones. Under -fsanitize=address there is a gap after each piece
// of the kernel's memory (Arena in plan.h).
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "definition.h"
#include "host.h"

// A sanitizer that finds something is to end with SIGABRT, whose handler says where. What the
// kernel keeps is counted here, without the help of a debugger's rights.
extern "C" const char* __asan_default_options() { return "abort_on_error=1:detect_leaks=0"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
extern "C" const char* __tsan_default_options() { return "abort_on_error=1:halt_on_error=1"; }

namespace fuzz {
namespace {

// ---- one run ------------------------------------------------------------------------------------

struct Output {
  const char* name = "";
  Dtype dtype = Dtype::f32;
  int64_t count = 0;
  Memory memory;
  const Sums* expected = nullptr;
  int64_t heads = 1, tokens = 1, dim = 1;  // of results (B, heads, tokens, dim) that lie otherwise

  // Where number n of those expected lies, if the tokens come before the heads.
  int64_t place(int64_t n) const {
    const int64_t row = n / dim, b = row / tokens / heads;
    const int64_t h = row / tokens % heads, token = row % tokens;
    return ((b * tokens + token) * heads + h) * dim + n % dim;
  }
};

// The outputs of a call, and the call with its pointers to them.
struct Run {
  Params params;
  std::vector<Output> outputs;
  Memory row_max, row_sum, rounded_off;

  Run(const Case& c, const Expected& e) : params(c.params) {
    const Dtype dtype = params.dtype;
    const int64_t rows = (int64_t)e.lse.value.size() * bytes_of(Dtype::f32);
    row_max = Memory(rows, kNotANumber), row_sum = Memory(rows, kNotANumber);
    params.row_max = (float*)row_max.data, params.row_sum = (float*)row_sum.data;
    const int64_t h = params.heads, h_kv = params.kv_heads;
    const int64_t i = params.seqlen_q, j = params.seqlen_k;
    params.output = result("output", e.output, h, i, params.value_dim, c.heads_inside[0]);
    if (c.keeps_rounded_off) {
      rounded_off = Memory(outputs.back().count * bytes_of(dtype), kNotANumber);
      params.rounded_off = params.output;
      params.rounded_off.data = rounded_off.data;
    }
    params.lse = (float*)output("lse", Dtype::f32, e.lse, kNotANumber);
    relpos::Gradients& to = params.gradients;
    to.q = result("d_q", e.d_q, h, i, params.head_dim, c.heads_inside[1]);
    to.k = result("d_k", e.d_k, h_kv, j, params.head_dim, c.heads_inside[2]);
    to.v = result("d_v", e.d_v, h_kv, j, params.value_dim, c.heads_inside[3]);
    to.q_rel = result("d_q_rel", e.d_q_rel, h, i, params.rel_dim, c.heads_inside[1]);
    for (int kind = 0; kind < kTableKinds; ++kind)
      to.tables[kind] = output(kKindNames[kind], dtype, e.d_tables[kind], kNotANumber);
    to.mask = (float*)output("d_mask", Dtype::f32, e.d_mask, 0);
    to.axis_tables = (float*)output("d_axis_tables", Dtype::f32, e.d_axis_tables, kNotANumber);
    to.joint_bias = (float*)output("d_joint_bias", Dtype::f32, e.d_joint_bias, 0);
    if (!to.mask) return;
    const Sizes strides = contiguous(c.mask.sizes);
    for (size_t axis = 0; axis < 4; ++axis)
      to.mask_strides[axis] = c.mask.sizes[axis] == 1 ? 0 : strides[axis];
  }

  void* output(const char* name, Dtype dtype, const Sums& expected, int byte) {
    const int64_t count = (int64_t)expected.value.size();
    outputs.push_back({name, dtype, count, Memory(count * bytes_of(dtype), byte), &expected});
    return outputs.back().memory.data;
  }

  // (B, heads, tokens, dim), contiguous or with the heads inside the tokens.
  relpos::ResultView result(const char* name, const Sums& expected, int64_t heads, int64_t tokens,
                            int64_t dim, bool heads_inside) {
    void* const data = output(name, params.dtype, expected, kNotANumber);
    if (!heads_inside) return {data, {heads * tokens * dim, tokens * dim, dim}};
    Output& made = outputs.back();
    made.heads = heads, made.tokens = tokens, made.dim = dim;
    return {data, {tokens * heads * dim, dim, heads * dim}};
  }

  bool finish(const Kernel& kernel) {
    return kernel.forward(params, host()) && kernel.backward(params, host());
  }

  // The first two outputs are those of forward.
  bool same_bits(const Run& other, bool forward_alone = false) const {
    for (size_t n = 0; n < (forward_alone ? 2 : outputs.size()); ++n) {
      const Output& one = outputs[n];
      if (one.count && std::memcmp(one.memory.data, other.outputs[n].memory.data,
                                   (size_t)(one.count * bytes_of(one.dtype))) != 0)
        return false;
    }
    return true;
  }
};

// ---- checks -------------------------------------------------------------------------------------

std::string current;   // the call, in words
std::string reported;  // the last one that failed
int64_t failures = 0;
double worst = 0;  // error found, as a share of its bound

void fail(const std::string& what) {
  if (reported != current) std::fprintf(stderr, "%s\n", current.c_str());
  std::fprintf(stderr, "  %s\n", what.c_str());
  reported = current;
  ++failures;
}

double bound_of(const Output& output, int64_t n) {
  const double value = output.expected->value[(size_t)n], bound = output.expected->error[(size_t)n];
  return bound + rounding(output.dtype) * (std::fabs(value) + bound) + smallest(output.dtype);
}

// The first number that is not what is expected, in words; empty if there is none.
std::string difference(const Output& output) {
  for (int64_t n = 0; n < output.count; ++n) {
    const double found = decode(output.dtype, output.memory.data, output.place(n));
    const double value = output.expected->value[(size_t)n], bound = bound_of(output, n);
    const double error = found == value ? 0 : std::fabs(found - value);
    // A row of masks so low that they swallow its scores may give any number.
    const bool any = !(bound < kInfinity) && !std::isnan(found);
    if (!any && output.dtype == Dtype::f32) worst = std::max(worst, error / bound);
    if (any || error <= bound) continue;
    char text[200];
    std::snprintf(text, sizeof text, "%s[%lld of %lld] is %.9g, not %.9g to within %.2g",
                  output.name, (long long)n, (long long)output.count, found, value, bound);
    return text;
  }
  return "";
}

std::string where(const Kernel& kernel) {
  return std::string(kernel.name) + ", " + std::to_string(threads) + " threads";
}

void check(Run& run, const Kernel& kernel) {
  if (!run.finish(kernel)) return fail(where(kernel) + ": no memory");
  for (const Output& output : run.outputs) {
    const std::string found = difference(output);
    if (!found.empty()) fail(where(kernel) + ": " + found);
  }
}

// One number changed by little more than its bound, and one that nobody has written, are noticed.
void check_notices(Run& run, Random& random) {
  const double before = worst;
  for (Output& output : run.outputs) {
    if (output.count == 0) continue;
    const int64_t n = random.whole(0, output.count - 1);
    const double bound = bound_of(output, n), value = output.expected->value[(size_t)n];
    if (output.dtype == Dtype::f32 && std::isfinite(value) && bound < 1e30) {
      encode(output.dtype, value + 2 * bound, output.memory.data, output.place(n));
      if (difference(output).empty()) fail(std::string("nothing noticed in ") + output.name);
    }
    std::memset(output.memory.data + output.place(n) * bytes_of(output.dtype), kNotANumber,
                (size_t)bytes_of(output.dtype));
    if (difference(output).empty()) fail(std::string("no NaN noticed in ") + output.name);
  }
  worst = before;
}

// Without any one piece of its memory a call is to say so, and to give back the others.
void check_without_memory(const Case& c, const Expected& expected, const Kernel& kernel) {
  requests = 0;
  Run(c, expected).finish(kernel);
  const int64_t wanted = requests;
  for (int64_t n = 0; n < wanted; ++n) {
    requests = 0, refused = n;
    const bool finished = Run(c, expected).finish(kernel);
    refused = -1;
    if (finished) fail(where(kernel) + ": finishes without memory");
  }
}

// The same bits again; with another number of threads the same numbers, forward the same bits.
void check_again(const Run& first, const Case& c, const Expected& expected, const Kernel& kernel) {
  Run again(c, expected), other(c, expected);
  again.finish(kernel);
  if (!first.same_bits(again)) fail(where(kernel) + ": other bits the second time");
  threads = threads % 4 + 1;
  check(other, kernel);
  if (!first.same_bits(other, true)) fail(where(kernel) + ": other bits with other threads");
  threads = c.threads;
}

// A params whose scores are all 0: each output is the mean of the values.
struct Mean {
  Params params = {};
  float zero = 0;
  std::vector<float> v, output, rows;
  std::vector<uint16_t> half_output;

  Mean() {
    params.batch = params.heads = params.kv_heads = params.head_dim = 1;
    params.seqlen_q = params.seqlen_k = 1;
    params.q.data = params.k.data = &zero;
    params.scale = 1;
  }
  void allocate() {
    const int64_t count = params.batch * params.heads * params.seqlen_q;
    v.resize((size_t)(params.seqlen_k * params.value_dim));
    output.resize((size_t)(count * params.value_dim));
    half_output.resize(output.size());
    rows.resize((size_t)(3 * count));
    params.v = {v.data(), {0, 0, params.value_dim}};
    const bool half = params.dtype != Dtype::f32;
    params.output = {half ? (void*)half_output.data() : output.data(),
                     {params.heads * params.seqlen_q * params.value_dim,
                      params.seqlen_q * params.value_dim, params.value_dim}};
    params.lse = rows.data();
    params.row_max = params.lse + count, params.row_sum = params.row_max + count;
  }
};

// Which pairs dropout keeps: with the powers of two as values, each output is a sum of those kept.
// Only the seed and the pair's indices are as in the case; nothing else may matter.
std::vector<char> kept_pairs(const Params& of) {
  constexpr int64_t kBits = 16;
  Mean mean;
  Params& params = mean.params;
  params.batch = of.batch, params.heads = of.heads;
  params.seqlen_q = of.seqlen_q, params.seqlen_k = of.seqlen_k;
  params.seed = of.seed, params.dropout = of.dropout, params.dropout_origin = of.dropout_origin;
  params.value_dim = of.seqlen_k / kBits + 1;
  mean.allocate();
  for (int64_t j = 0; j < of.seqlen_k; ++j)
    mean.v[(size_t)(j * params.value_dim + j / kBits)] = (float)(1 << j % kBits);
  relpos::portable_kernel()->forward(params, host());
  const double unit = (1 - of.dropout) * (double)of.seqlen_k;
  std::vector<char> kept;
  for (int64_t row = 0; row < of.batch * of.heads * of.seqlen_q; ++row)
    for (int64_t j = 0; j < of.seqlen_k; ++j) {
      const double sum = mean.output[(size_t)(row * params.value_dim + j / kBits)] * unit;
      kept.push_back(std::llround(sum) >> j % kBits & 1);
    }
  return kept;
}

void check_share(const Case& c) {
  const double count = (double)c.kept.size(), share = 1 - c.params.dropout;
  const double kept = (double)std::count(c.kept.begin(), c.kept.end(), 1);
  if (std::fabs(kept - share * count) > 6 * std::sqrt(count * share * (1 - share)) + 1)
    fail("dropout keeps " + std::to_string(kept) + " of " + std::to_string(count) + " pairs");
}

void check_seed(uint64_t seed, bool threads_only) {
  Case c(seed);
  if (threads_only && !c.worth_threads()) return;
  current = c.words();
  threads = c.threads;
  if (c.params.dropout > 0) {
    c.kept = kept_pairs(c.params);
    check_share(c);
  }
  std::vector<const Kernel*> all;
  for (const Kernel* kernel : kernels())
    if (kernel->takes(c.params)) all.push_back(kernel);
  const Expected exact = Definition(c, 0, 0).expected;
  for (size_t n = 0; n < all.size(); ++n) {
    const Expected expected =
        all[n]->weight_error
            ? Definition(c, all[n]->weight_error, all[n]->product_error).expected
            : exact;
    Run run(c, expected);
    check(run, *all[n]);
    if (seed % all.size() == n) check_again(run, c, expected, *all[n]);
    if (seed / all.size() % 8 == 0) check_without_memory(c, expected, *all[n]);
    if (seed % all.size() == n) check_notices(run, c.random);
  }
  if (held != 0) fail("memory is not given back");
}

// Every number of a half precision is to become the same float, and what lies `eighths` of the way
// to the next one is to be rounded to the nearer of the two, to the even one halfway: one query
// averages the two, weighted by its mask. A query has `dim` of these numbers: of 17, most are
// converted as vectors.
void check_rounding(const Kernel& kernel, Dtype dtype, int eighths, int64_t dim) {
  constexpr int64_t kNumbers = 0xffff;  // the last, a NaN, has no next one
  const auto number = [&](int64_t n) { return decode_half(dtype, (uint16_t)n); };
  const auto usable = [&](int64_t n) {
    return std::fabs(number(n)) < 1e38 && std::fabs(number(n + 1)) < 1e38;
  };
  std::vector<uint16_t> v;
  for (int64_t first = 0; first < kNumbers; first += dim)
    for (int64_t key = 0; key < 2; ++key)
      for (int64_t n = first; n < first + dim; ++n)
        v.push_back(usable(n) ? (uint16_t)(n + key) : 0);
  const float mask[2] = {0, std::log((float)eighths / (float)(8 - eighths))};
  Mean mean;
  Params& params = mean.params;
  params.dtype = dtype, params.batch = kNumbers / dim, params.seqlen_k = 2;
  params.value_dim = dim;
  mean.allocate();
  params.v = {v.data(), {2 * dim, 0, dim}};
  params.mask.data = mask, params.mask.dtype = Dtype::f32, params.mask.strides[3] = 1;
  kernel.forward(params, host());
  for (int64_t n = 0; n < kNumbers; ++n) {
    const bool up = eighths == 4 ? n % 2 : eighths > 4;
    const double nearer = number(up ? n + 1 : n);
    const double rounded = decode_half(dtype, mean.half_output[(size_t)n]);
    if (!usable(n) || rounded == nearer) continue;
    return fail(where(kernel) + ": rounds to " + std::to_string(rounded) + " what is " +
                std::to_string(eighths) + " eighths beyond the bits " + std::to_string(n));
  }
}

// exp(x) / (1 + exp(x)), the weight of a key whose mask is x beside one whose mask is 0: off by the
// exponential's 4 units at most, and one each for the sum, its inverse and the product.
void check_exponential(const Kernel& kernel) {
  constexpr int64_t kPoints = 50000;
  Mean mean;
  Params& params = mean.params;
  params.seqlen_q = kPoints, params.seqlen_k = 2, params.value_dim = 1;
  mean.allocate();
  mean.v[1] = 1;
  std::vector<float> mask((size_t)(2 * kPoints));
  for (size_t n = 0; n < kPoints; ++n) mask[2 * n + 1] = -95 * (float)n / kPoints;
  params.mask.data = mask.data(), params.mask.dtype = Dtype::f32;
  params.mask.strides[2] = 2, params.mask.strides[3] = 1;
  kernel.forward(params, host());
  for (size_t n = 0; n < kPoints; ++n) {
    const double x = mask[2 * n + 1], weight = std::exp(x) / (1 + std::exp(x));
    if (std::fabs(mean.output[n] - weight) <= 7.1 * kUnit * weight + 2e-38) continue;
    return fail(where(kernel) + ": exp(" + std::to_string(x) + ") is off by " +
                std::to_string(std::fabs(mean.output[n] / weight - 1) / kUnit) + " units");
  }
}

// A query or a key that is NaN makes NaN of the rows that see it, and of no others.
void check_nan(const Kernel& kernel, bool of_key) {
  Mean mean;
  Params& params = mean.params;
  params.seqlen_q = 40, params.seqlen_k = 600, params.value_dim = 3;
  params.query_start = 560, params.causal = true;
  mean.allocate();
  std::vector<float> q((size_t)params.seqlen_q), k((size_t)params.seqlen_k);
  (of_key ? k[580] : q[20]) = NAN;
  params.q = {q.data(), {0, 0, 1}}, params.k = {k.data(), {0, 0, 1}};
  kernel.forward(params, host());
  for (size_t i = 0; i < q.size(); ++i)
    if (std::isnan(mean.output[3 * i]) != (of_key ? i >= 20 : i == 20))
      return fail(where(kernel) + ": query " + std::to_string(i) + " gives " +
                  std::to_string(mean.output[3 * i]));
}

void check_numbers() {
  threads = 1;
  for (const Kernel* kernel : kernels()) {
    if (kernel->weight_error) continue;
    current = "exponentials";
    check_exponential(*kernel);
    current = "a query that is NaN";
    check_nan(*kernel, false);
    current = "a key that is NaN";
    check_nan(*kernel, true);
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      current = dtype == Dtype::f16 ? "numbers in f16" : "numbers in bf16";
      for (int eighths = 0; eighths < 8; ++eighths)
        for (const int64_t dim : {1, 17}) check_rounding(*kernel, dtype, eighths, dim);
    }
  }
}

void say_where(int) { std::fprintf(stderr, "in %s\n", current.c_str()); }

int fuzz(int64_t count, uint64_t first, bool threads_only) {
  std::signal(SIGABRT, say_where);
  if (!threads_only) check_numbers();
  for (uint64_t seed = first; seed < first + (uint64_t)count; ++seed)
    check_seed(seed, threads_only);
  if (std::getenv("FUZZ_VERBOSE"))
    std::fprintf(stderr, "largest error as a share of its bound: %.3f\n", worst);
  return failures != 0;
}

}  // namespace
}  // namespace fuzz

int main(int count, char** arguments) {
  const bool threads_only = count == 4 && std::strcmp(arguments[3], "threads") == 0;
  if (count < 2 || count > 3 + threads_only) {
    std::fprintf(stderr, "usage: fuzz SEEDS [FIRST [threads]]\n");
    return 2;
  }
  return fuzz::fuzz(std::atoll(arguments[1]),
                    count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0, threads_only);
}
