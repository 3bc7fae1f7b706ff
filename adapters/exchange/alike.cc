#include "tutti/adapters/exchange/alike.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

namespace tutti {

namespace {

std::vector<std::string> lines_of(std::span<const std::byte> bytes) {
  std::vector<std::string> lines(1);
  for (const auto byte : bytes) {
    const auto letter = static_cast<char>(byte);
    if (letter == '\n')
      lines.emplace_back();
    else
      lines.back() += letter;
  }
  return lines;
}

}  // namespace

void check_settings_alike(Communicator& comm, std::span<const std::string> settings,
                          std::string_view whose) {
  std::string text;
  for (const auto& setting : settings) text += (text.empty() ? "" : "\n") + setting;
  const auto all = comm.allgather_bytes(fmt::format("settings of {}", whose),
                                        std::as_bytes(std::span<const char>(text)));
  const auto expected = lines_of(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto got = lines_of(all[rank]);
    for (size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
      const std::string want = i < expected.size() ? expected[i] : "nothing";
      const std::string have = i < got.size() ? got[i] : "nothing";
      if (want == have) continue;
      throw Error(ErrorCode::mismatch,
                  fmt::format("{} has other settings on rank {} than on rank 0: expected "
                              "{}, got {}; give every rank the same",
                              whose, rank, want, have))
          .with_rank(static_cast<int>(rank));
    }
  }
}

void check_values_alike(Communicator& comm, std::span<const NamedTensor> tensors) {
  std::vector<uint64_t> digests;
  for (const auto& tensor : tensors)
    digests.push_back(
        XXH3_64bits(tensor.tensor.data(), static_cast<size_t>(tensor.tensor.bytes())));
  const auto all =
      comm.allgather_bytes("parameters of distributed()", std::as_bytes(std::span(digests)));
  for (size_t rank = 1; rank < all.size(); ++rank)
    for (size_t i = 0; i < tensors.size(); ++i) {
      uint64_t expected = 0, got = 0;
      std::memcpy(&expected, all[0].data() + i * sizeof(uint64_t), sizeof(uint64_t));
      std::memcpy(&got, all[rank].data() + i * sizeof(uint64_t), sizeof(uint64_t));
      if (expected == got) continue;
      throw Error(ErrorCode::mismatch,
                  fmt::format("parameter \"{}\" starts unequal: expected rank 0's values (digest "
                              "{:016x}), got others on rank {} ({:016x}); set broadcast_first or "
                              "load the same checkpoint on every rank",
                              tensors[i].name, expected, rank, got))
          .with_rank(static_cast<int>(rank))
          .with_tensor(tensors[i].name);
    }
}

}  // namespace tutti
