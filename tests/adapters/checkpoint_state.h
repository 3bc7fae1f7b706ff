#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tutti/adapters/checkpoint/checkpoint_folder.h"

namespace tutti::test {

/// The state of a training, as one rank of `size` holds it. Every bit follows from the step. It has
/// replicated tensors of several types, an empty one, a scalar, and two divided tensors (replicated
/// if `divided` is false).
class CheckpointState {
 public:
  CheckpointState(int rank, int size, bool divided = true) {
    add("w", Shape{7, 3}, DataType::f32, Held::replicated, rank, size);
    add("table", Shape{1001}, DataType::f32, divided ? Held::divided : Held::replicated, rank,
        size);
    add("half", Shape{33}, DataType::bf16, Held::replicated, rank, size);
    add("none", Shape{0, 4}, DataType::f32, Held::replicated, rank, size);
    add("steps", Shape{}, DataType::i64, Held::replicated, rank, size);
    add("few", Shape{2}, DataType::f64, divided ? Held::divided : Held::replicated, rank, size);
  }
  explicit CheckpointState(const Communicator& comm, bool divided = true)
      : CheckpointState(comm.rank(), comm.size(), divided) {}

  std::vector<PlacedTensor>& placed() { return placed_; }
  void fill(int64_t step) {
    for (auto& tensor : placed_) {
      const auto bytes = expected(tensor, step);
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<unsigned char*>(tensor.here.data()));
    }
  }
  /// Returns the names of tensors whose values differ from those of fill(step).
  std::string wrong(int64_t step) const {
    std::string names;
    for (const auto& tensor : placed_) {
      const auto bytes = expected(tensor, step);
      if (!std::equal(bytes.begin(), bytes.end(),
                      reinterpret_cast<const unsigned char*>(tensor.here.data())))
        names += tensor.name + " ";
    }
    return names;
  }

 private:
  void add(const std::string& name, const Shape& shape, DataType dtype, Held held, int rank,
           int size) {
    const Placement placement{shape, held, size, rank};
    // Allocates one more element, so that an empty part has an address.
    memory_.emplace_back(static_cast<size_t>((placement.here().count() + 1) * size_of(dtype)));
    placed_.push_back(
        {name,
         TensorView(memory_.back().data(),
                    held == Held::divided ? Shape{placement.here().count()} : shape, dtype),
         placement});
  }
  static std::vector<unsigned char> expected(const PlacedTensor& tensor, int64_t step) {
    const int64_t each = size_of(tensor.here.dtype());
    const auto range = tensor.placement.here();
    std::vector<unsigned char> bytes;
    for (int64_t at = range.begin * each; at < range.end * each; ++at)
      bytes.push_back(static_cast<unsigned char>(at * 37 + at / 256 + step * 101 +
                                                 static_cast<int64_t>(tensor.name.size())));
    return bytes;
  }

  std::vector<std::vector<unsigned char>> memory_;
  std::vector<PlacedTensor> placed_;
};

}  // namespace tutti::test
