#include "tutti/adapters/exchange/alike.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <cstring>

#include "tutti/tensor/absent_memory.h"
#include "tutti/tensor/tensor.h"

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

// Returns a text such as "f32[6,1,5,5]", with the strides unless they are row-major.
std::string type_of(const TensorView& tensor) {
  auto text = fmt::format("{}{}", to_string(tensor.dtype()), tensor.shape().to_string());
  if (!tensor.is_row_major())
    text += fmt::format(" with strides [{}]", fmt::join(tensor.strides(), ","));
  return text;
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
      throw Error(
          ErrorCode::mismatch,
          fmt::format("{} has different settings on rank {} and on rank 0: expected {}, got "
                      "{}; give every rank the same",
                      whose, rank, want, have))
          .with_rank(static_cast<int>(rank));
    }
  }
}

void check_tensors_alike(Communicator& comm, std::span<const NamedTensor> tensors,
                         std::string_view kind) {
  // Each tensor has two lines: its name and its type.
  std::string text;
  for (const auto& tensor : tensors)
    text += fmt::format("{}\n{}\n", tensor.name, type_of(tensor.tensor));
  const auto all = comm.allgather_bytes(fmt::format("{}s of the model", kind),
                                        std::as_bytes(std::span<const char>(text)));
  const auto expected = lines_of(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto got = lines_of(all[rank]);
    const auto differs = [&](const std::string& name, const std::string& what) {
      return Error(ErrorCode::mismatch, what + "; build the same model on every rank")
          .with_rank(static_cast<int>(rank))
          .with_tensor(name);
    };
    const size_t both = std::min(expected.size(), got.size());
    for (size_t line = 0; line + 1 < both; line += 2) {
      if (expected[line] != got[line])
        throw differs(
            expected[line],
            fmt::format("{} {} is different on rank {} and on rank 0: expected \"{}\", got \"{}\"",
                        kind, line / 2, rank, expected[line], got[line]));
      if (expected[line + 1] != got[line + 1])
        throw differs(expected[line],
                      fmt::format("{} \"{}\" has a different type or shape on rank {} and on rank "
                                  "0: expected {}, got {}",
                                  kind, expected[line], rank, expected[line + 1], got[line + 1]));
    }
    if (expected.size() == got.size()) continue;
    const auto& name = expected.size() > got.size() ? expected[both - 1] : got[both - 1];
    throw differs(
        name, fmt::format("the model has a different number of {}s on rank {} and on rank 0: "
                          "expected {}, got {}, and the first that only one of them has is \"{}\"",
                          kind, rank, expected.size() / 2, got.size() / 2, name));
  }
}

void check_values_alike(Communicator& comm, std::span<const NamedTensor> tensors) {
  std::vector<uint64_t> digests;
  for (const auto& tensor : tensors) {
    require_present(tensor.name, tensor.tensor);
    const auto bytes = static_cast<size_t>(tensor.tensor.bytes());
    std::vector<std::byte> copy;
    if (tensor.tensor.device().kind != DeviceKind::cpu) {
      copy.resize(bytes);
      copy_to_host(copy.data(), tensor.tensor);
    }
    digests.push_back(XXH3_64bits(copy.empty() ? tensor.tensor.data() : copy.data(), bytes));
  }
  const auto all =
      comm.allgather_bytes("parameters of distributed()", std::as_bytes(std::span(digests)));
  for (size_t rank = 1; rank < all.size(); ++rank)
    for (size_t i = 0; i < tensors.size(); ++i) {
      uint64_t expected = 0, got = 0;
      std::memcpy(&expected, all[0].data() + i * sizeof(uint64_t), sizeof(uint64_t));
      std::memcpy(&got, all[rank].data() + i * sizeof(uint64_t), sizeof(uint64_t));
      if (expected == got) continue;
      throw Error(ErrorCode::mismatch,
                  fmt::format("parameter \"{}\" begins with different values: expected rank 0's "
                              "(digest {:016x}), got others on rank {} ({:016x}); set "
                              "broadcast_first or load the same checkpoint on every rank",
                              tensors[i].name, expected, rank, got))
          .with_rank(static_cast<int>(rank))
          .with_tensor(tensors[i].name);
    }
}

}  // namespace tutti
