// Packed documents of a call, as the kernels read them: small numbers for each token's document,
// and the keys between which those of a query's document lie.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <unordered_map>
#include <vector>

namespace relpos {

// All in the order of tokens, one batch entry after another.
struct DocumentIndex {
  std::vector<int32_t> ids;                 // of keys, numbered from 0 in each entry; -1 for none
  std::vector<int32_t> query_ids;           // -1 for none, and for one that no key has
  std::vector<int64_t> key_begin, key_end;  // of queries; empty ranges where their id is -1
  bool interleaved = false;                 // some range has keys of other documents in it

  // The next batch entry: documents (num_keys) and query_documents (num_queries), negative for none.
  template <class T>
  void add_entry(const T* documents, int64_t num_keys, const T* query_documents,
                 int64_t num_queries) {
    struct Found {
      int32_t id;
      int64_t begin, end, num_keys;
    };
    std::unordered_map<int64_t, Found> found;
    for (int64_t j = 0; j < num_keys; ++j) {
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
    for (const auto& [document, range] : found)
      interleaved = interleaved || range.end - range.begin != range.num_keys;
    for (int64_t i = 0; i < num_queries; ++i) {
      const auto at = found.find((int64_t)query_documents[i]);
      const Found none = {-1, 0, 0, 0};
      const Found& range = at == found.end() ? none : at->second;
      query_ids.push_back(range.id);
      key_begin.push_back(range.begin);
      key_end.push_back(range.end);
    }
  }
};

}  // namespace relpos
