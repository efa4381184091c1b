// Packed documents of a call, as the kernels read them: small numbers for each token's document,
// and the keys between which its tokens lie.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <unordered_map>
#include <vector>

namespace relpos {

// All in the order of tokens, one batch entry (seqlen_k) after another.
struct DocumentIndex {
  std::vector<int32_t> ids;                 // numbered from 0 in each entry; -1 for none
  std::vector<int64_t> key_begin, key_end;  // empty ranges for tokens of no document
  bool interleaved = false;                 // some range has keys of other documents in it

  // The next batch entry: documents (count), negative for none.
  template <class T>
  void add_entry(const T* documents, int64_t count) {
    struct Found {
      int32_t id;
      int64_t begin, end, num_keys;
    };
    std::unordered_map<int64_t, Found> found;
    const size_t first = ids.size();
    for (int64_t j = 0; j < count; ++j) {
      const int64_t document = (int64_t)documents[j];
      if (document < 0) {
        ids.push_back(-1);
        continue;
      }
      auto [at, is_new] = found.try_emplace(document, Found{(int32_t)found.size(), j, j + 1, 0});
      at->second.end = j + 1;
      at->second.num_keys += 1;
      ids.push_back(at->second.id);
    }
    std::vector<const Found*> by_id(found.size());
    for (const auto& [document, range] : found) {
      by_id[(size_t)range.id] = &range;
      interleaved = interleaved || range.end - range.begin != range.num_keys;
    }
    for (int64_t j = 0; j < count; ++j) {
      const int32_t id = ids[first + (size_t)j];
      key_begin.push_back(id < 0 ? 0 : by_id[(size_t)id]->begin);
      key_end.push_back(id < 0 ? 0 : by_id[(size_t)id]->end);
    }
  }
};

}  // namespace relpos
