#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "tutti/adapters/nn/steps/steps.h"
#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {

Sentinel::Sentinel(Communicator& comm, std::vector<Parameter> parameters, int64_t every)
    : comm_(comm), parameters_(std::move(parameters)), every_(every) {
  if (every < 1)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("sentinel: it cannot compare every {} steps; expected at least 1", every));
}

void Sentinel::look(int64_t step) {
  if (step % every_ != 0) return;
  std::vector<uint64_t> hashes;
  for (const auto& parameter : parameters_) {
    const auto value = on_host(parameter.value);
    hashes.push_back(XXH3_64bits(value.data(), static_cast<size_t>(value.bytes())));
  }
  const size_t bytes = hashes.size() * sizeof(uint64_t);
  // The ranks' hashes are equal exactly if the maximum of the hashes and that of their complements
  // are complements of each other.
  const uint64_t whole = XXH3_64bits(hashes.data(), bytes);
  std::vector<uint64_t> ends{whole, ~whole};
  comm_.allreduce_blocking("sentinel", ends, ReduceOp::max);
  if (ends[0] == ~ends[1]) return;

  const auto all = comm_.allgather_bytes("sentinel hashes", std::as_bytes(std::span(hashes)));
  const auto hash_of = [&](size_t rank, size_t parameter) {
    uint64_t hash = 0;
    if (all[rank].size() == bytes)
      std::memcpy(&hash, all[rank].data() + parameter * sizeof(hash), sizeof(hash));
    return hash;
  };
  for (size_t p = 0; p < parameters_.size(); ++p) {
    std::map<uint64_t, int> counts;
    for (size_t rank = 0; rank < all.size(); ++rank) ++counts[hash_of(rank, p)];
    if (counts.size() == 1) continue;
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    // If two values occur equally often, it is not known which is right.
    const bool is_known = std::count_if(counts.begin(), counts.end(), [&](auto& count) {
                            return count.second == most->second;
                          }) == 1;
    std::string ranks;
    int first = -1;
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (!is_known || hash_of(rank, p) != most->first) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
        if (first < 0) first = static_cast<int>(rank);
      }
    throw Error(ErrorCode::mismatch,
                fmt::format("sentinel: at step {} parameter \"{}\" differs on rank {}{}; go back "
                            "to the last checkpoint and look at that host's memory",
                            step, parameters_[p].name, ranks,
                            is_known ? ", while the others agree" : ", and none has a majority"))
        .with_rank(first)
        .with_tensor(parameters_[p].name);
  }
}

}  // namespace tutti::nn
