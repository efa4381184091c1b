// The sizes that everything is cut into.
//
// Each kernel_*.cpp defines RELPOS_LANES, RELPOS_MR and RELPOS_NR_VECTORS for its instruction set
// before it includes this; a header that is opened alone (by an editor, by
// tests/native/test_headers.py) gets those of 128-bit vectors.
//
//     W   = kLanes        floats in a vector
//     MR  = kMR           rows of a register block: the product of MR rows and NR columns whose
//     NR  = kNR           sums stay in registers; NR = kNRVectors * W
//     block               up to kBlockRows queries of one head (FlashAttention's kBlockM)
//     tile                up to kTileKeys keys (FlashAttention's kBlockN)
//     panel               MR rows, or NR columns, of a packed matrix: (depth, MR) or (depth, NR)
//
// With RELPOS_TILES products are made by a matrix unit, of bfloat16 numbers (tiles.h,
// tile_products.h); then a block's scores are made strip by strip. RELPOS_PARTS = 2 splits each
// number of an operand in two: what rounding gives, and the rest, rounded.
#pragma once

#include <stdint.h>

#if !defined(RELPOS_LANES)
#define RELPOS_LANES 4
#define RELPOS_MR 4
#define RELPOS_NR_VECTORS 2
#endif
#if !defined(RELPOS_TILES)
#define RELPOS_TILES 0
#endif
#if !defined(RELPOS_PARTS)
#define RELPOS_PARTS 1
#endif

namespace relpos {
namespace {

constexpr int kLanes = RELPOS_LANES;
constexpr int kMR = RELPOS_MR;
constexpr int kNRVectors = RELPOS_NR_VECTORS;
constexpr int kNR = kNRVectors * kLanes;

constexpr bool kTiles = RELPOS_TILES;
constexpr int64_t kParts = RELPOS_PARTS;

// What the packed operands of products are made of: floats, or bfloat16 numbers.
#if RELPOS_TILES
typedef uint16_t packed;
#else
typedef float packed;
#endif

constexpr int64_t kBlockRows = kTiles ? 128 : 64;
constexpr int64_t kTileKeys = 256;
// The rows of a block whose scores are in memory at once, in either pass.
constexpr int64_t kForwardStripRows = kTiles ? 64 : kBlockRows;
constexpr int64_t kStripRows = kTiles ? 32 : kBlockRows;
// Keys are multiplied in runs of so many, and heads cut into blocks of whole runs of rows.
constexpr int64_t kKeyUnit = kTiles ? 32 : kLanes;
constexpr int64_t kRowUnit = kTiles ? 32 : kMR;
// Columns of a window that repeat each end (offset_window.h), so that whatever is read together and
// has a column beside the window has no other; and columns multiplied at a time.
constexpr int64_t kMargin = kTiles ? 32 : kLanes - 1;
constexpr int64_t kOffsetUnit = kTiles ? 16 : kNR;
// Rows of (kBlockRows, kTileKeys) buffers are this far apart: an odd number of 64-byte cache lines,
// so that the rows of a column do not compete for one set of the cache. What lies between two rows
// takes the last vector of a row of keys that does not begin at a whole vector.
constexpr int64_t kTileStride = kTileKeys + 16;

// Columns of an offset buffer (offset_buffer.h), and how far apart its rows are.
constexpr int64_t kBufferColumns = 512;
constexpr int64_t kBufferStride = kBufferColumns + 16;

// Weights in the form that a matrix unit reads (weights.h): rows of so many, each with so many zeros
// before it and after it, for those that read it sheared.
constexpr int64_t kWeightStride = kTileKeys + 96;
constexpr int64_t kWeightMargin = 64;
constexpr int64_t weights_size(int64_t rows) {
  return kWeightMargin + rows * kParts * kWeightStride;
}
constexpr int64_t weight_pairs_size(int64_t rows) {
  return 2 * kWeightMargin + rows * kParts * kWeightStride;
}

// Keys that the table of queries is dotted with at once (queries_term.h).
constexpr int64_t kKeyChunk = 32;

// In a call of at most this many queries, scores are dot products of q and k as they lie: to pack
// all keys would cost more than to multiply them.
constexpr int64_t kFewQueries = 8;

static_assert(kKeyChunk % kLanes == 0 && kBlockRows % kLanes == 0 &&
                  kTileKeys + kLanes <= kTileStride,
              "whole vectors of keys and of queries");
static_assert(!kTiles || kNR == kKeyUnit, "a panel of packed keys is one of whole runs");
static_assert(kTileKeys % kNR == 0, "each tile begins at a panel of the packed keys");
static_assert(kTileKeys + kBlockRows + 2 * kNR <= kBufferColumns,
              "an offset buffer holds all offsets between a block and a tile, in whole panels");

}  // namespace
}  // namespace relpos
