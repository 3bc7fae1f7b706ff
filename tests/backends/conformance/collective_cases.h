#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/bulk.h"
#include "tutti/collectives/collective.h"
#include "tutti/kernels/convert.h"
#include "tutti/kernels/reduce.h"

// Collectives with inputs and expected outputs, for the conformance suite of backends.

namespace tutti::test {

/// One collective over all ranks: the input and the expected output of each.
struct Case {
  Collective shape;                                               // kind, dtype, op, root, scale
  std::vector<std::vector<std::byte>> inputs, outputs, expected;  // per rank
  std::vector<std::vector<int64_t>> send_counts, recv_counts;     // per rank
  std::vector<CollectiveKind> kinds;                              // send and recv differ by rank
  std::vector<int> roots;

  Collective of(int rank) {
    const auto at = static_cast<size_t>(rank);
    Collective collective = shape;
    collective.kind = kinds[at];
    collective.root = roots[at];
    collective.input = inputs[at].data();
    collective.output = outputs[at].data();
    collective.send_counts = send_counts[at];
    collective.recv_counts = recv_counts[at];
    return collective;
  }
  void check() const {
    for (size_t rank = 0; rank < outputs.size(); ++rank)
      EXPECT_TRUE(same(outputs[rank], expected[rank]))
          << to_string(shape.kind) << " of " << to_string(shape.dtype) << " with "
          << to_string(shape.op) << ", root " << shape.root << ": wrong on rank " << rank << " of "
          << outputs.size();
  }
};

/// Small whole numbers that every type can hold, and so can their sums.
inline std::vector<std::byte> small_numbers(DataType dtype, int64_t count, uint64_t seed) {
  constexpr uint8_t kNumbers[] = {0, 1, 2, 3};
  const auto size = static_cast<size_t>(size_of(dtype)), n = static_cast<size_t>(count);
  std::vector<std::byte> four(4 * size), bytes(n * size);
  cast_reference(DataType::u8, reinterpret_cast<const std::byte*>(kNumbers), dtype, four.data(), 4);
  fill_from_four(bytes.data(), n, size, four.data(), seed);
  return bytes;
}

/// Numbers at the limits of a type, so that the sum of two overflows. For f16 and wider floats they
/// are powers of two, so that the order of additions does not change the rounding.
inline std::vector<std::byte> numbers_at_limits(DataType dtype, int64_t count, uint64_t seed) {
  const double most = is_float(dtype) ? 32'768 : 1e30;  // a cast saturates
  const double numbers[] = {most, -most, most, is_float(dtype) ? 0.0 : 1.0};
  const auto size = static_cast<size_t>(size_of(dtype)), n = static_cast<size_t>(count);
  std::vector<std::byte> four(4 * size), bytes(n * size);
  cast_reference(DataType::f64, reinterpret_cast<const std::byte*>(numbers), dtype, four.data(), 4);
  fill_from_four(bytes.data(), n, size, four.data(), seed);
  return bytes;
}

class CaseMaker {
 public:
  CaseMaker(int size, uint64_t seed) : size_(size), random_(seed) {}

  bool at_limits = false;  // inputs at the limits of the type
  // A rank that has joined and adds zeros: an average divides by the other ranks only.
  int absent = -1;
  double postscale = 1;  // for kinds that reduce

  Case make(CollectiveKind kind, DataType dtype, ReduceOp op, int64_t count) {
    Case test;
    test.shape.kind = kind;
    test.shape.dtype = dtype;
    test.shape.op = op;
    test.shape.scale.factor = postscale;
    test.shape.root = static_cast<int>(random_() % static_cast<uint64_t>(size_));
    const auto n = static_cast<size_t>(size_);
    for (auto* lists : {&test.inputs, &test.outputs, &test.expected}) lists->resize(n);
    test.send_counts.resize(n);
    test.recv_counts.resize(n);
    test.kinds.assign(n, kind);
    test.roots.assign(n, test.shape.root);
    test_ = &test;
    count_ = count;
    fill();
    // The check compares bytes that must stay unwritten too.
    for (size_t rank = 0; rank < n; ++rank)
      test.outputs[rank].assign(test.expected[rank].size(), std::byte{0x5a});
    return test;
  }

 private:
  using Bytes = std::vector<std::byte>;

  Bytes numbers(int64_t count) {
    return (at_limits ? numbers_at_limits : small_numbers)(test_->shape.dtype, count, random_());
  }
  size_t bytes(int64_t count) const {
    return static_cast<size_t>(count * size_of(test_->shape.dtype));
  }
  std::vector<int64_t> uneven() {
    std::vector<int64_t> counts(static_cast<size_t>(size_));
    for (auto& count : counts)
      count = static_cast<int64_t>(random_() % static_cast<uint64_t>(count_ + 1));
    return counts;
  }
  static int64_t sum(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  void leave_out_absent() {
    if (absent >= 0) std::ranges::fill(test_->inputs[static_cast<size_t>(absent)], std::byte{0});
  }
  Bytes reduced() const {
    const auto& shape = test_->shape;
    std::vector<const std::byte*> inputs;
    for (const auto& input : test_->inputs) inputs.push_back(input.data());
    Bytes result(test_->inputs[0].size());
    auto op = shape.op;
    auto scale = shape.scale;
    if (absent >= 0 && op == ReduceOp::average) {
      op = ReduceOp::sum;
      scale.divisor = size_ - 1;
    }
    reduce_reference(shape.dtype, op, result.data(), inputs,
                     static_cast<int64_t>(result.size()) / size_of(shape.dtype), scale);
    return result;
  }
  static Bytes joined(const std::vector<Bytes>& parts) {
    Bytes all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  void fill() {
    auto& test = *test_;
    const auto n = static_cast<size_t>(size_);
    const auto root = static_cast<size_t>(test.shape.root);
    const auto same = uneven();
    switch (test.shape.kind) {
      case CollectiveKind::allreduce:
      case CollectiveKind::reduce:
        for (size_t r = 0; r < n; ++r) {
          test.inputs[r] = numbers(count_);
          test.send_counts[r] = {count_};
        }
        leave_out_absent();
        test.expected[root] = reduced();
        for (size_t r = 0; r < n; ++r)
          if (test.shape.kind == CollectiveKind::allreduce) test.expected[r] = test.expected[root];
        break;
      case CollectiveKind::broadcast: {
        const Bytes all = numbers(count_);
        for (size_t r = 0; r < n; ++r) {
          if (r == root) test.inputs[r] = all;
          test.send_counts[r] = {count_};
          test.expected[r] = all;
        }
        break;
      }
      case CollectiveKind::allgather:
      case CollectiveKind::gather:
        for (size_t r = 0; r < n; ++r) {
          test.inputs[r] = numbers(same[r]);
          test.send_counts[r] = same;
        }
        for (size_t r = 0; r < n; ++r)
          if (test.shape.kind == CollectiveKind::allgather || r == root)
            test.expected[r] = joined(test.inputs);
        break;
      case CollectiveKind::scatter:
        for (size_t r = 0; r < n; ++r) {
          test.send_counts[r] = same;
          test.expected[r] = numbers(same[r]);
        }
        test.inputs[root] = joined(test.expected);
        break;
      case CollectiveKind::reduce_scatter: {
        for (size_t r = 0; r < n; ++r) {
          test.inputs[r] = numbers(sum(same));
          test.send_counts[r] = same;
        }
        leave_out_absent();
        const Bytes all = reduced();
        size_t at = 0;
        for (size_t r = 0; r < n; ++r) {
          test.expected[r].assign(all.begin() + static_cast<std::ptrdiff_t>(at),
                                  all.begin() + static_cast<std::ptrdiff_t>(at + bytes(same[r])));
          at += bytes(same[r]);
        }
        break;
      }
      case CollectiveKind::alltoall: {
        std::vector<std::vector<Bytes>> parts(n, std::vector<Bytes>(n));
        for (size_t from = 0; from < n; ++from) {
          test.send_counts[from] = uneven();
          for (size_t to = 0; to < n; ++to) parts[from][to] = numbers(test.send_counts[from][to]);
          test.inputs[from] = joined(parts[from]);
        }
        for (size_t to = 0; to < n; ++to)
          for (size_t from = 0; from < n; ++from) {
            test.recv_counts[to].push_back(test.send_counts[from][to]);
            test.expected[to].insert(test.expected[to].end(), parts[from][to].begin(),
                                     parts[from][to].end());
          }
        break;
      }
      case CollectiveKind::send:
      case CollectiveKind::recv: {
        // Ranks 2i and 2i+1 exchange data. A last odd rank has no partner and sends to nobody.
        for (size_t r = 0; r < n; ++r) {
          const size_t other = r ^ 1;
          test.send_counts[r] = {count_};
          test.roots[r] = static_cast<int>(other);
          test.kinds[r] = r % 2 == 0 ? CollectiveKind::send : CollectiveKind::recv;
          if (r % 2 == 1) {
            test.inputs[other] = numbers(count_);
            test.expected[r] = test.inputs[other];
          }
        }
        break;
      }
      case CollectiveKind::barrier:
        break;
    }
  }

  const int size_;
  std::mt19937_64 random_;
  Case* test_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace tutti::test
