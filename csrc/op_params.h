// An op's tensors as plain data: the Params that a kernel is given.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "document_index.h"
#include "op_arguments.h"
#include "op_checks.h"
#include "params.h"

namespace relpos {

inline Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::BFloat16: return Dtype::bf16;
    case ScalarType::Half: return Dtype::f16;
    case ScalarType::Bool: return Dtype::boolean;
    default: throw std::runtime_error("relpos native: no such dtype");
  }
}

// 0 along an axis of size 1, as if it were broadcast.
inline int64_t stride(const Tensor& x, int64_t axis) { return x.size(axis) == 1 ? 0 : x.stride(axis); }

// A tensor may have numbers and no memory: FSDP frees parameters after their module's call.
inline const Tensor& allocated(const Tensor& x) {
  int64_t bytes = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(x.get(), &bytes));
  require(bytes > 0 || x.numel() == 0,
          "every tensor must have its memory, got one whose memory was freed (FSDP frees "
          "parameters after their module's call: wrap the layer, not its position)");
  return x;
}

// Keeps alive the tensors that a Params points to.
class TensorKeeper {
 public:
  const Tensor& keep(const Tensor& x) {
    kept_.push_back(allocated(x));
    return kept_.back();
  }
  const Tensor& contiguous(const Tensor& x) {
    return keep(x.is_contiguous() ? x : torch::stable::contiguous(allocated(x)));
  }
  // With a contiguous last axis; others may be broadcast or permuted.
  const Tensor& contiguous_rows(const Tensor& x) {
    const bool fits = x.size(x.dim() - 1) <= 1 || x.stride(x.dim() - 1) == 1;
    return keep(fits ? x : torch::stable::contiguous(allocated(x)));
  }
  // Of x (B, H, L, D), or (B, H, L).
  TensorView view(const Tensor& x) {
    const Tensor& kept = contiguous_rows(x);
    return {kept.const_data_ptr(), {stride(kept, 0), stride(kept, 1), stride(kept, 2)}};
  }

 private:
  std::vector<Tensor> kept_;
};

// A Params with all that it points to. It must outlive the kernel's call and stay where it is.
struct BoundParams {
  Params params = {};
  TensorKeeper keeper;
  DocumentIndex document_index;

  BoundParams(const BoundParams&) = delete;
  explicit BoundParams(const Arguments& from) {
    check_shapes(from);
    params.batch = from.q.size(0), params.heads = from.q.size(1);
    params.kv_heads = from.k.size(1);
    params.seqlen_q = from.q.size(2), params.seqlen_k = from.k.size(2);
    params.head_dim = from.q.size(3), params.value_dim = from.v.size(3);
    params.query_start = from.query_start;
    params.dtype = dtype_of(from.q);
    params.q = keeper.view(from.q), params.k = keeper.view(from.k), params.v = keeper.view(from.v);
    if (from.q_rel) {
      params.q_rel = keeper.view(*from.q_rel);
      params.rel_dim = from.q_rel->size(3);
    }
    bind_table(kKeys, from.keys, from);
    bind_table(kQueries, from.queries, from);
    bind_table(kBias, from.bias, from);
    bind_table(kValues, from.values, from);
    if (from.mask) bind_mask(*from.mask);
    if (!from.key_grid.empty()) bind_grid(from);
    if (from.documents) bind_documents(*from.documents, from.query_documents);
    if (from.key_ranges) params.key_ranges = ranges_of(*from.key_ranges);
    if (from.key_grid.empty() && !from.window.empty())
      params.window = {from.window[0], from.window[1]};
    params.softcap = (float)from.softcap;
    params.causal = from.causal;
    params.scale = (float)from.scale;
    params.dropout = from.dropout;
    params.split_float32 = from.split_float32;
    params.dropout_origin = {params.heads, 0, params.seqlen_q, 0, 0};
    if (!from.dropout_origin.empty()) {
      const Ints& origin = from.dropout_origin;
      params.dropout_origin = {origin[0], origin[1], origin[2], origin[3], origin[4]};
    }
    params.has_other_keys = from.has_other_keys;
    if (from.seed) params.seed = (uint64_t)*from.seed->const_data_ptr<int64_t>();
  }

  void bind_table(TableKind kind, const OptionalTensor& rows, const Arguments& from) {
    if (!rows) return;
    OffsetTable& table = params.tables[kind];
    table.rows = keeper.contiguous(*rows).const_data_ptr();
    table.heads = rows->size(0), table.num_rows = rows->size(1);
    table.row_dim = rows->dim() == 3 ? rows->size(2) : 1;
    table.first_offset = from.first_offsets[(size_t)kind];
    table.zero_beyond = !from.zero_beyond.empty() && from.zero_beyond[(size_t)kind] != 0;
  }

  void bind_mask(const Tensor& x) {
    params.mask.dtype = dtype_of(x);
    // Those of half precision are read by whole rows, or one number for a row.
    const bool any_strides = params.mask.dtype == Dtype::boolean ||
                             params.mask.dtype == Dtype::f32 || stride(x, 3) == 0;
    const Tensor& kept = any_strides ? keeper.keep(x) : keeper.contiguous_rows(x);
    params.mask.data = kept.const_data_ptr();
    for (int64_t axis = 0; axis < 4; ++axis) params.mask.strides[axis] = stride(kept, axis);
  }

  // Of one head's tables of all axes.
  int64_t axis_table_numbers() const {
    int64_t numbers = 0;
    for (int n = 0; n < params.grid.num_axes; ++n) {
      const Axis& axis = params.grid.axes[n];
      numbers += axis.table_rows() * (axis.key_dim + axis.has_queries * params.head_dim +
                                      axis.has_bias + axis.has_values * params.value_dim);
    }
    return numbers;
  }

  void bind_grid(const Arguments& from) {
    Grid& grid = params.grid;
    grid.num_axes = (int)from.key_grid.size();
    const KeyRanges ranges = from.axis_ranges ? ranges_of(*from.axis_ranges) : KeyRanges();
    int64_t query_coords = 0;  // of the axes before
    for (size_t n = 0; n < from.key_grid.size(); ++n) {
      Axis& axis = grid.axes[n];
      axis.set_sizes(from.key_grid[n], from.query_grid[n]);
      axis.key_dim = from.axis_key_widths[n], axis.has_q_rel = from.axis_has_q_rel[n] != 0;
      axis.has_queries = from.axis_has_queries[n] != 0;
      axis.has_bias = from.axis_has_bias[n] != 0, axis.has_values = from.axis_has_values[n] != 0;
      if (!from.window.empty()) axis.window = {from.window[2 * n], from.window[2 * n + 1]};
      grid.is_local = grid.is_local || axis.window.limited();
      if (from.axis_ranges) axis.ranges = {ranges.ranges + 2 * query_coords, ranges.batch_stride};
      grid.sum_size_k += axis.size_k, query_coords += axis.size_q;
    }
    grid.is_local = grid.is_local || from.axis_ranges;
    grid.prefix = from.prefix;
    if (from.axis_tables) {
      grid.axis_tables = keeper.contiguous(*from.axis_tables).const_data_ptr<float>();
      grid.axis_table_heads = from.axis_tables->size(0);
      grid.axis_table_size = from.axis_tables->size(1);
    }
    // Where sizes were symbols, tables have a row for each pair of coordinates.
    if (grid.axis_table_size != axis_table_numbers())
      for (int n = 0; n < grid.num_axes; ++n)
        if (grid.axes[n].size_k != grid.axes[n].size_q) grid.axes[n].ratio = 0;
    const int64_t table_size = axis_table_numbers();
    require(from.axis_tables ? has_sizes(*from.axis_tables, {-params.heads, table_size})
                             : table_size == 0,
            "axis_tables must be (h or 1, numbers of all axes' tables)");
    if (!from.joint_bias) return;
    grid.joint_bias = keeper.contiguous(*from.joint_bias).const_data_ptr<float>();
    grid.joint_bias_heads = from.joint_bias->size(0);
    grid.joint_bias_size = from.joint_bias->size(1);
  }

  // Without `queries` the queries are some of the keys' tokens.
  void bind_documents(const Tensor& keys, const OptionalTensor& queries) {
    switch (keys.scalar_type()) {
      case ScalarType::Long: index_documents<int64_t>(keys, queries); break;
      case ScalarType::Int: index_documents<int32_t>(keys, queries); break;
      case ScalarType::Short: index_documents<int16_t>(keys, queries); break;
      case ScalarType::Char: index_documents<int8_t>(keys, queries); break;
      default: index_documents<uint8_t>(keys, queries);
    }
    const bool one_entry = keys.size(0) == 1 && (!queries || queries->size(0) == 1);
    params.documents = {document_index.ids.data(), document_index.query_ids.data(),
                        document_index.key_begin.data(), document_index.key_end.data(),
                        one_entry ? 0 : params.seqlen_k, one_entry ? 0 : params.seqlen_q,
                        document_index.interleaved};
  }

  // Ranges (b or 1, n, 2).
  KeyRanges ranges_of(const Tensor& x) {
    return {keeper.contiguous(x).const_data_ptr<int64_t>(), x.size(0) == 1 ? 0 : 2 * x.size(1)};
  }

  template <class T>
  void index_documents(const Tensor& keys, const OptionalTensor& queries) {
    const T* of_keys = keeper.contiguous(keys).const_data_ptr<T>();
    const T* of_queries = of_keys + params.query_start;
    if (queries) of_queries = keeper.contiguous(*queries).const_data_ptr<T>();
    const Tensor& others = queries ? *queries : keys;
    const int64_t key_stride = keys.size(0) == 1 ? 0 : keys.size(1);
    const int64_t query_stride = others.size(0) == 1 ? 0 : others.size(1);
    // An empty batch has no documents to read.
    const int64_t entries = params.batch ? std::max(keys.size(0), others.size(0)) : 0;
    for (int64_t b = 0; b < entries; ++b)
      document_index.add_entry(of_keys + b * key_stride, params.seqlen_k,
                               of_queries + b * query_stride, params.seqlen_q);
  }

  // softmax (2, B, H, seqlen_q): row_max and row_sum.
  void bind_softmax(const Tensor& softmax) {
    params.row_max = softmax.mutable_data_ptr<float>();
    params.row_sum = params.row_max + params.num_rows();
  }
};

}  // namespace relpos
