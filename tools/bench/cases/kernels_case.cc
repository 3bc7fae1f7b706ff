// Measures sums of several inputs on each rank by itself. They show the cost of the arithmetic
// without any exchange.
#include <fmt/format.h>

#include <cstring>

#include "tools/bench/cases/cases.h"
#include "tools/bench/workload/exact_data.h"
#include "tools/bench/workload/sizes.h"
#include "tutti/base/text.h"
#include "tutti/kernels/reduce.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

namespace {

constexpr DataType kDtypes[] = {DataType::f32, DataType::f16, DataType::bf16};
constexpr int kInputCounts[] = {2, 4};
// Two and four inputs of this size still fit in the second-level cache. For larger sizes the plain
// loop and averages are skipped, because they show no more than the sums.
constexpr int64_t kSmallBytes = 1 << 20;

using Loop = void (*)(DataType, ReduceOp, std::byte*, std::span<const std::byte* const>, int64_t);

void vectorised(DataType dtype, ReduceOp op, std::byte* output,
                std::span<const std::byte* const> inputs, int64_t count) {
  reduce(dtype, op, output, inputs, count);
}

void plain(DataType dtype, ReduceOp op, std::byte* output, std::span<const std::byte* const> inputs,
           int64_t count) {
  reduce_reference(dtype, op, output, inputs, count);
}

// Memory for one size. All measurements at this size use it.
class Buffers {
 public:
  explicit Buffers(int64_t bytes) : output_(Shape{bytes}, DataType::u8) {
    for (auto& input : inputs_) input = Tensor(Shape{bytes}, DataType::u8);
  }

  void fill(DataType dtype, ReduceOp op, int input_count) {
    const ExactData data(dtype, op, input_count);
    for (int j = 0; j < input_count; ++j)
      Pattern(dtype, [&](int64_t i) {
        return data.input(j, i);
      }).fill(inputs_[j].data(), output_.bytes() / size_of(dtype));
    for (int j = 0; j < input_count; ++j) pointers_[j] = inputs_[j].data();
  }
  void run(Loop loop, DataType dtype, ReduceOp op, int input_count) {
    loop(dtype, op, output_.data(), std::span(pointers_).first(static_cast<size_t>(input_count)),
         output_.bytes() / size_of(dtype));
  }
  // Runs once more into memory that holds no result, and counts the wrong elements.
  int64_t count_wrong(Loop loop, DataType dtype, ReduceOp op, int input_count) {
    std::memset(output_.data(), 0xee, static_cast<size_t>(output_.bytes()));
    run(loop, dtype, op, input_count);
    const ExactData data(dtype, op, input_count);
    return Pattern(dtype, [&](int64_t i) { return data.reduced(i); })
        .count_wrong(output_.data(), output_.bytes() / size_of(dtype));
  }

 private:
  Tensor output_;
  std::array<Tensor, 4> inputs_;
  std::array<const std::byte*, 4> pointers_ = {};
};

}  // namespace

bool run_kernels(Session& session) {
  auto& report = session.report();
  report.print(
      fmt::format("# tutti-bench kernels: {}, each by itself\n"
                  "#{:>11} {:>6} {:>8} {:>6} {:>11} {:>12} {:>12} {:>6}\n",
                  format_count(session.size(), "rank"), "size (B)", "type", "redop", "inputs",
                  "loop", "time (us)", "moved (GB/s)", "#wrong"));
  bool right = true;
  for (const int64_t size : session.settings().bytes) {
    const int64_t bytes = (size + 3) / 4 * 4;
    Buffers buffers(bytes);
    const auto measure = [&](DataType dtype, ReduceOp op, int input_count, Loop loop) {
      auto record = session.record(Way::blocking);
      record.way = loop == plain ? "plain" : "vectorised";
      record.in_place = false;
      record.bytes = bytes;
      record.dtype = to_string(dtype);
      record.op = to_string(op);
      session.set_timing(record, session.measure({{}, [&](int64_t iterations) {
                                                    for (int64_t i = 0; i < iterations; ++i)
                                                      buffers.run(loop, dtype, op, input_count);
                                                  }}));
      record.wrong = session.count(buffers.count_wrong(loop, dtype, op, input_count));
      // Counts the bytes that all ranks load and store.
      const double moved =
          static_cast<double>((input_count + 1) * bytes * session.size()) / record.time_us / 1000;
      record.extra["inputs"] = input_count;
      record.extra["moved_gb_per_s"] = moved;
      report.print(fmt::format(" {:>11} {:>6} {:>8} {:>6} {:>11} {:>12.2f} {:>12.2f} {:>6}\n",
                               bytes, record.dtype, record.op, input_count, record.way,
                               record.time_us, moved, record.wrong));
      report.add(record);
      right &= record.wrong == 0;
    };
    for (const auto dtype : kDtypes)
      for (const auto op : {ReduceOp::sum, ReduceOp::average})
        for (const int input_count : kInputCounts) {
          if (bytes > kSmallBytes && op != ReduceOp::sum) continue;
          buffers.fill(dtype, op, input_count);
          measure(dtype, op, input_count, vectorised);
          if (bytes <= kSmallBytes) measure(dtype, op, input_count, plain);
        }
  }
  return right;
}

}  // namespace tutti::bench
