// Allreduce, alone and in groups, over every dtype in one to three dimensions.
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/api/case.h"
#include "tutti/kernels/convert.h"

namespace tutti::test {
namespace {

// Returns element i of rank `rank`'s input. The sum over a few ranks fits in every dtype.
double input(int rank, int64_t i) { return static_cast<double>(i % 7 + rank); }
double sum_of(int size, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += input(rank, i);
  return sum;
}
Formula inputs_of(const Communicator& comm) {
  return [rank = comm.rank()](int64_t i) { return input(rank, i); };
}

template <class T>
double number_of(T value) {
  if constexpr (std::is_same_v<T, Float16>)
    return static_cast<double>(to_float(value));
  else
    return static_cast<double>(value);
}

// Checks every dtype and shape with one op.
void check_op(Communicator& comm, ReduceOp op, const std::vector<DataType>& dtypes,
              const std::function<double(int size, int64_t i)>& expected) {
  for_each_tensor(dtypes, [&](const std::string& name, Shape shape, DataType dtype) {
    const auto tensor = make_tensor(shape, dtype, inputs_of(comm));
    comm.allreduce(name, tensor, op).wait();
    expect_elements(tensor, [&](int64_t i) { return expected(comm.size(), i); });
  });
}

TUTTI_CASE(Allreduce, Sum) { check_op(comm, ReduceOp::sum, numbers(), sum_of); }

// Integers are divided toward zero.
TUTTI_CASE(Allreduce, Average) {
  const int size = comm.size();
  for_each_tensor(numbers(), [&](const std::string& name, Shape shape, DataType dtype) {
    // Every rank's values are a multiple of the number of ranks, so that the mean is exact.
    const auto tensor = make_tensor(
        shape, dtype, [&](int64_t i) { return static_cast<double>((i % 3 + comm.rank()) * size); });
    comm.allreduce(name, tensor).wait();
    expect_elements(tensor, [&](int64_t i) {
      return static_cast<double>(i % 3 * size + size * (size - 1) / 2);
    });
  });
  std::vector<int> whole(3, comm.rank() == 0 ? -7 : 0);
  comm.allreduce("toward zero", whole).wait();
  EXPECT_EQ(whole, std::vector<int>(3, -7 / size));
}

// The sum overflows the type, but the average does not: in a named and a blocking allreduce, and in
// a reduce_scatter.
template <class T>
void check_average_of(Communicator& comm, const std::string& name, T most) {
  const auto size = static_cast<size_t>(comm.size());
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{70'000}}) {
    const std::vector<T> expected(count, most);
    std::vector<T> values(count, most);
    comm.allreduce(name, values).wait();
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), count * sizeof(T)), 0) << name;
    comm.allreduce_blocking(name, values);
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), count * sizeof(T)), 0) << name;
    std::vector<T> all(count * size, most);
    const auto part =
        comm.reduce_scatter(name + " scattered", all, ReduceOptions{.op = ReduceOp::average})
            .output();
    expect_elements(part, [&](int64_t) { return number_of(most); });
  }
}

TUTTI_CASE(Allreduce, AveragesAtTheLimitsOfTheirTypes) {
  check_average_of<uint8_t>(comm, "u8", 200);
  check_average_of<int8_t>(comm, "i8", -128);
  check_average_of<int16_t>(comm, "i16", 32'767);
  check_average_of<uint16_t>(comm, "u16", 65'535);
  check_average_of<int32_t>(comm, "i32", std::numeric_limits<int32_t>::max());
  check_average_of<uint32_t>(comm, "u32", std::numeric_limits<uint32_t>::max());
  check_average_of<int64_t>(comm, "i64", std::numeric_limits<int64_t>::min());
  check_average_of<uint64_t>(comm, "u64", uint64_t{1} << 63);
  check_average_of<Float16>(comm, "f16", to_float16(32'768));
  // An f32 tensor is sent as f16.
  std::vector<float> gradient(30'000, 32'768.0f);
  comm.allreduce("wire", gradient, ReduceOptions{.wire = DataType::f16}).wait();
  EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 32'768.0f));
}

TUTTI_CASE(Allreduce, Min) {
  check_op(comm, ReduceOp::min, numbers(), [](int, int64_t i) { return input(0, i); });
}

TUTTI_CASE(Allreduce, Max) {
  check_op(comm, ReduceOp::max, numbers(), [](int size, int64_t i) { return input(size - 1, i); });
}

TUTTI_CASE(Allreduce, Product) {
  for_each_tensor(numbers(), [&](const std::string& name, Shape shape, DataType dtype) {
    const auto tensor =
        make_tensor(shape, dtype, [&](int64_t i) { return comm.rank() < 3 ? i % 3 + 1 : 1; });
    comm.allreduce(name, tensor, ReduceOp::product).wait();
    expect_elements(tensor, [&](int64_t i) {
      double product = 1;
      for (int rank = 0; rank < std::min(comm.size(), 3); ++rank) product *= i % 3 + 1;
      return product;
    });
  });
}

TUTTI_CASE(Allreduce, BitwiseOpsOnWholeNumbersAndBool) {
  for (const auto dtype : {DataType::i32, DataType::u8, DataType::u64}) {
    // Bit `rank` and bit 6 are set on every rank.
    const auto bits = [&](int64_t) { return static_cast<double>((1 << comm.rank()) | 64); };
    const auto either = make_tensor(Shape{17}, dtype, bits), both = either.clone();
    const auto odd = either.clone();
    comm.allreduce("bor", either, ReduceOp::bor).wait();
    comm.allreduce("band", both, ReduceOp::band).wait();
    comm.allreduce("bxor", odd, ReduceOp::bxor).wait();
    expect_elements(either, [&](int64_t) { return ((1 << comm.size()) - 1) | 64; });
    expect_elements(both, [](int64_t) { return 64; });
    expect_elements(
        odd, [&](int64_t) { return ((1 << comm.size()) - 1) | (comm.size() % 2 == 1 ? 64 : 0); });
  }
  const auto flags =
      make_tensor(Shape{4}, DataType::boolean, [&](int64_t i) { return i == comm.rank(); });
  comm.allreduce("flags", flags, ReduceOp::bor).wait();
  expect_elements(flags, [&](int64_t i) { return i < comm.size(); });
}

TUTTI_CASE(Allreduce, InPlaceAndOutOfPlace) {
  for_each_tensor(numbers(), [&](const std::string& name, Shape shape, DataType dtype) {
    const auto in = make_tensor(shape, dtype, inputs_of(comm));
    const Tensor out(shape, dtype);
    comm.allreduce(name, in, out, {.op = ReduceOp::sum}).wait();
    expect_elements(in, inputs_of(comm));
    expect_elements(out, [&](int64_t i) { return sum_of(comm.size(), i); });
    comm.allreduce(name, in, in, {.op = ReduceOp::sum}).wait();
    expect_elements(in, [&](int64_t i) { return sum_of(comm.size(), i); });
  });
}

// Many tensors of mixed dtypes are pending at the same time, in another order on each rank. They
// are fused in each step.
TUTTI_CASE(Allreduce, AsyncFused) {
  const auto before = comm.statistics();
  constexpr int kTensors = 60, kSteps = 10;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (int t = 0; t < kTensors; ++t)
      tensors.push_back(make_tensor(Shape{t % 9 + 1, 3}, numbers()[static_cast<size_t>(t) % 12],
                                    inputs_of(comm)));
    for (int t = 0; t < kTensors; ++t) {
      const int mine = (t * 7 + comm.rank() * 13) % kTensors;
      works.push_back(comm.allreduce(fmt::format("fused {}", mine),
                                     tensors[static_cast<size_t>(mine)], ReduceOp::sum));
    }
    for (auto& work : works) work.wait();
    for (const auto& tensor : tensors)
      expect_elements(tensor, [&](int64_t i) { return sum_of(comm.size(), i); });
  }
  const auto after = comm.statistics();
  EXPECT_EQ(after.tensors - before.tensors, uint64_t{kTensors * kSteps});
  EXPECT_LT(after.buckets - before.buckets, uint64_t{kTensors * kSteps});
}

// Every rank's values are multiplied before they are added. Each integer product is truncated.
double prescaled_sum(DataType dtype, int size, int64_t i, double factor) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += scaled(dtype, input(rank, i), factor);
  return sum;
}

TUTTI_CASE(Allreduce, Prescale) {
  for_each_tensor(numbers(), [&](const std::string& name, Shape shape, DataType dtype) {
    const double factor = random_factor(dtype);
    SCOPED_TRACE(factor);
    const auto tensor = make_tensor(shape, dtype, inputs_of(comm));
    comm.allreduce(name, tensor, {.op = ReduceOp::sum, .prescale = factor}).wait();
    expect_elements(tensor,
                    [&](int64_t i) { return prescaled_sum(dtype, comm.size(), i, factor); });
  });
}

TUTTI_CASE(Allreduce, Postscale) {
  for_each_tensor(numbers(), [&](const std::string& name, Shape shape, DataType dtype) {
    const double factor = random_factor(dtype);
    SCOPED_TRACE(factor);
    const auto tensor = make_tensor(shape, dtype, inputs_of(comm));
    comm.allreduce(name, tensor, {.op = ReduceOp::sum, .postscale = factor}).wait();
    expect_elements(tensor,
                    [&](int64_t i) { return scaled(dtype, sum_of(comm.size(), i), factor); });
  });
}

TUTTI_CASE(Allreduce, ProcessSets) {
  in_process_set(comm, [](Communicator& set) { check_op(set, ReduceOp::sum, numbers(), sum_of); });
}

TUTTI_CASE(Allreduce, ShapeError) {
  std::vector<float> values(18, 1);
  const auto differ = [&](const std::string& name, Shape zero, Shape others) {
    const auto text = [](const Shape& shape) { return "f32" + shape.to_string(); };
    expect_mismatch(
        comm,
        fmt::format("\"{}\": {}; all ranks must submit the same shape. Nothing was changed.", name,
                    rank_zero_differs(comm, text(zero), text(others))),
        [&] {
          comm.allreduce(name,
                         TensorView(values.data(), comm.rank() == 0 ? zero : others, DataType::f32))
              .wait();
        });
    EXPECT_EQ(values, std::vector<float>(18, 1));
  };
  differ("extent", Shape{17}, Shape{18});
  differ("extents of one count", Shape{2, 9}, Shape{9, 2});
  differ("dimensions", Shape{18}, Shape{2, 3, 3});
}

TUTTI_CASE(Allreduce, DtypeError) {
  std::vector<float> values(17, 1);
  const auto dtype = comm.rank() == 0 ? DataType::f32 : DataType::i32;
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same dtype. Nothing was changed.",
                  rank_zero_differs(comm, "f32[17]", "i32[17]")),
      [&] { comm.allreduce("x", TensorView(values.data(), Shape{17}, dtype)).wait(); });
  EXPECT_EQ(values, std::vector<float>(17, 1));
}

TUTTI_CASE(Allreduce, OpScaleAndWireErrors) {
  std::vector<float> values(17, 1);
  const auto differ = [&](const std::string& what, const std::string& zero,
                          const std::string& others, const ReduceOptions& of_zero,
                          const ReduceOptions& of_others) {
    expect_mismatch(
        comm,
        fmt::format("\"x\": {}; all ranks must submit the same {}. Nothing was changed.",
                    rank_zero_differs(comm, zero, others), what),
        [&] { comm.allreduce("x", values, comm.rank() == 0 ? of_zero : of_others).wait(); });
    EXPECT_EQ(values, std::vector<float>(17, 1));
  };
  differ("op", "sum", "max", {.op = ReduceOp::sum}, {.op = ReduceOp::max});
  differ("prescale and postscale", "scales 2 and 1", "scales 1 and 1", {.prescale = 2}, {});
  differ("wire type", "wire f16", "wire f32", {.wire = DataType::f16}, {});
  differ("priority", "priority 3", "priority 0", {.priority = 3}, {});
}

TUTTI_CASE(Allreduce, DeviceError) {
  use_fake_device();
  std::vector<float> values(17, 1);
  const auto place = comm.rank() == 0 ? Device{DeviceKind::fake, 0} : Device{};
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same device. Nothing was changed.",
                  rank_zero_differs(comm, "memory on " + to_string(Device{DeviceKind::fake, 0}),
                                    "memory on " + to_string(Device{}))),
      [&] {
        comm.allreduce("x", TensorView(values.data(), Shape{17}, DataType::f32, place)).wait();
      });
  EXPECT_EQ(values, std::vector<float>(17, 1));
}

TUTTI_CASE(Allreduce, DuplicateName) {
  std::vector<float> values(17, 1);
  expect_duplicate_refused(comm,
                           [&](const std::string& name) { return comm.allreduce(name, values); });
}

TUTTI_CASE(Allreduce, SixteenBitsOnTheWire) {
  for (const auto wire : {DataType::f16, DataType::bf16})
    for (const auto dtype : {DataType::f32, DataType::f64}) {
      const auto tensor = make_tensor(Shape{17, 5}, dtype, inputs_of(comm));
      comm.allreduce("wire", tensor, {.op = ReduceOp::sum, .wire = wire}).wait();
      expect_elements(tensor, [&](int64_t i) { return sum_of(comm.size(), i); });
    }
  // The wire type rounds 1 + 2^-12 to 1, and all ranks hold the same bits.
  std::vector<float> fine(3, 1.0f + 0x1p-12f);
  comm.allreduce("fine", fine, {.wire = DataType::f16}).wait();
  EXPECT_EQ(fine, std::vector<float>(3, 1.0f));
}

// Returns how many bytes all ranks together send for one allreduce of `count` elements.
int64_t bytes_sent(Communicator& comm, int64_t count, DataType dtype,
                   std::optional<DataType> wire) {
  const auto tensor = make_tensor(Shape{count}, dtype, inputs_of(comm));
  comm.barrier("before").wait();
  const auto before = comm.statistics().data_bytes;
  comm.allreduce("counted", tensor, {.op = ReduceOp::sum, .wire = wire}).wait();
  comm.barrier("after").wait();
  auto bytes = static_cast<int64_t>(comm.statistics().data_bytes - before);
  comm.allreduce("bytes", TensorView(&bytes, Shape{}, DataType::i64), ReduceOp::sum).wait();
  return bytes;
}

// A tensor with a wire type sends as many bytes as a tensor of that type: a quarter or a half of
// its own. Both are counted in one run, in which the ranks choose the same algorithm. A tensor of
// another length may use another algorithm, but that does not save three quarters of the bytes.
TUTTI_CASE(Allreduce, TheWireTypeIsWhatTravels) {
  const auto backend = comm.backend();
  // Libraries that move the data themselves, and kernels that load it from a peer's memory, do not
  // report the bytes.
  for (const auto* name : {"nccl", "gloo", "peer"})
    if (backend.find(name) != backend.npos) return;
  for (const int64_t count : {100, 50'000})
    for (const auto wire : {DataType::f16, DataType::bf16}) {
      SCOPED_TRACE(fmt::format("{} elements as {} over {}", count, to_string(wire), backend));
      const auto narrow = bytes_sent(comm, count, wire, {});
      EXPECT_GE(narrow, 2 * count);
      EXPECT_LT(narrow, bytes_sent(comm, count, DataType::f64, {}));
      EXPECT_EQ(bytes_sent(comm, count, DataType::f32, wire), narrow);
      EXPECT_EQ(bytes_sent(comm, count, DataType::f64, wire), narrow);
    }
}

TUTTI_CASE(Allreduce, NoElementsAndScalars) {
  std::vector<float> nothing;
  comm.allreduce("nothing", nothing).wait();
  double value = comm.rank();
  comm.allreduce("scalar", TensorView(&value, Shape{}, DataType::f64), ReduceOp::max).wait();
  EXPECT_EQ(value, comm.size() - 1);
}

// --- groups -------------------------------------------------------------------------------------

struct Group {
  std::vector<Tensor> tensors;
  std::vector<NamedTensor> named;

  Group(const std::vector<DataType>& dtypes, const Formula& inputs) {
    for (const auto dtype : dtypes)
      for (const auto& shape : shapes()) {
        tensors.push_back(make_tensor(shape, dtype, inputs));
        named.push_back({fmt::format("member {}", named.size()), tensors.back()});
      }
  }
  void expect(const Formula& formula) const {
    for (const auto& tensor : tensors) expect_elements(tensor, formula);
  }
};

void check_grouped_sum(Communicator& comm) {
  const Group group(numbers(), inputs_of(comm));
  comm.grouped_allreduce("sum", group.named, {.op = ReduceOp::sum}).wait();
  group.expect([&](int64_t i) { return sum_of(comm.size(), i); });
}

TUTTI_CASE(GroupedAllreduce, Sum) { check_grouped_sum(comm); }

TUTTI_CASE(GroupedAllreduce, AverageInPlace) {
  const int size = comm.size();
  // The inputs differ, and the number of ranks divides their sums.
  const auto mean = [&](int64_t i) {
    return static_cast<double>(i % 3 * size + size * (size - 1) / 2);
  };
  const Group group(numbers(),
                    [&](int64_t i) { return static_cast<double>((i % 3 + comm.rank()) * size); });
  comm.grouped_allreduce("average", group.named).wait();
  group.expect(mean);
  const Group halves(floats(),
                     [&](int64_t i) { return static_cast<double>((i % 3 + comm.rank()) * size); });
  comm.grouped_allreduce("prescaled", halves.named, {.prescale = 0.75}).wait();
  halves.expect([&](int64_t i) { return mean(i) * 0.75; });
}

TUTTI_CASE(GroupedAllreduce, ProcessSets) {
  in_process_set(comm, [](Communicator& set) { check_grouped_sum(set); });
}

// The error of the mismatching member fails the whole group, and no member is changed.
TUTTI_CASE(GroupedAllreduce, OneMemberDiffers) {
  std::vector<float> a(3, 1), b(4, 1);
  const auto rows = static_cast<int64_t>(comm.rank() == 0 ? 3 : 4);
  const std::vector<NamedTensor> members = {
      {"a", a}, {"b", TensorView(b.data(), Shape{rows}, DataType::f32)}};
  expect_mismatch(
      comm,
      fmt::format("\"b\": {}; all ranks must submit the same shape. Nothing was changed.",
                  rank_zero_differs(comm, "f32[3]", "f32[4]")),
      [&] { comm.grouped_allreduce("group", members).wait(); });
  EXPECT_EQ(a, std::vector<float>(3, 1));
}

TUTTI_CASE(GroupedAllreduce, GroupsDiffer) {
  std::vector<float> values(3, 1);
  const std::vector<NamedTensor> members = {{"x", values}};
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same group. Nothing was changed.",
                  rank_zero_differs(comm, "group \"one\" of 1", "group \"other\" of 1")),
      [&] { comm.grouped_allreduce(comm.rank() == 0 ? "one" : "other", members).wait(); });
}

TUTTI_CASE(GroupedAllreduce, DeviceError) {
  use_fake_device();
  std::vector<float> values(3, 1);
  const auto place = comm.rank() == 0 ? Device{DeviceKind::fake, 0} : Device{};
  const std::vector<NamedTensor> members = {
      {"x", TensorView(values.data(), Shape{3}, DataType::f32, place)}};
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same device. Nothing was changed.",
                  rank_zero_differs(comm, "memory on " + to_string(Device{DeviceKind::fake, 0}),
                                    "memory on " + to_string(Device{}))),
      [&] { comm.grouped_allreduce("group", members).wait(); });
  // The rank itself sees that its group mixes host and device memory, before it asks the others.
  std::vector<float> more(3, 1);
  const std::vector<NamedTensor> mixed = {
      {"here", values},
      {"there", TensorView(more.data(), Shape{3}, DataType::f32, Device{DeviceKind::fake, 0})}};
  const auto error = error_of([&] { return comm.grouped_allreduce("mixed", mixed); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_STREQ(error.what(),
               "group \"mixed\": \"here\" lives on cpu, \"there\" on fake:0; the tensors of a "
               "group live on one device");
  expect_still_works(comm);
}

}  // namespace
}  // namespace tutti::test
