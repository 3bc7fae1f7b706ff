#include "tests/api/case.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <random>

#include "tests/tensor/fake_device.h"
#include "tutti/base/text.h"
#include "tutti/kernels/convert.h"

namespace tutti::test {

// --- tensors -------------------------------------------------------------------------------------

Tensor make_tensor(const Shape& shape, DataType dtype, const Formula& formula) {
  std::vector<double> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = formula(static_cast<int64_t>(i));
  Tensor tensor(shape, dtype);
  cast(DataType::f64, reinterpret_cast<const std::byte*>(values.data()), dtype, tensor.data(),
       tensor.count());
  return tensor;
}

void expect_elements(const TensorView& tensor, const Formula& formula) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  cast(tensor.dtype(), tensor.data(), DataType::f64, reinterpret_cast<std::byte*>(values.data()),
       tensor.count());
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = formula(static_cast<int64_t>(i));
    ASSERT_EQ(values[i], expected)
        << "element " << i << " of " << to_string(tensor.dtype()) << tensor.shape().to_string();
  }
}

std::vector<Shape> shapes() { return {Shape{17}, Shape{17, 5}, Shape{17, 5, 3}}; }

std::vector<DataType> numbers() {
  std::vector<DataType> all;
  for (int i = 0; i < kDataTypeCount; ++i)
    if (is_float(static_cast<DataType>(i)) || is_integer(static_cast<DataType>(i)))
      all.push_back(static_cast<DataType>(i));
  return all;
}

std::vector<DataType> floats() {
  return {DataType::f64, DataType::f32, DataType::f16, DataType::bf16};
}

void for_each_tensor(const std::vector<DataType>& dtypes,
                     const std::function<void(const std::string&, Shape, DataType)>& body) {
  for (const auto dtype : dtypes)
    for (const auto& shape : shapes()) {
      const auto name = fmt::format("{}{}", to_string(dtype), shape.to_string());
      SCOPED_TRACE(name);
      body(name, shape, dtype);
    }
}

double random_factor(DataType dtype) {
  std::mt19937 random(17 + static_cast<unsigned>(dtype));
  const int odd = random() % 2 == 0 ? 3 : 5;
  return std::ldexp(odd, -1 - static_cast<int>(random() % 3));
}

double scaled(DataType dtype, double value, double factor) {
  return is_float(dtype) ? value * factor : std::trunc(value * factor);
}

void use_fake_device() {
  static const auto device =
      has_device_runtime(DeviceKind::fake) ? nullptr : std::make_unique<FakeDevice>();
}

// --- errors --------------------------------------------------------------------------------------

void expect_mismatch(Communicator& comm, const std::string& line,
                     const std::function<void()>& body) {
  const auto error = error_of(body);
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_EQ(error.what(), line);
  expect_still_works(comm);
}

void expect_still_works(Communicator& comm) {
  std::vector<float> values(5, static_cast<float>(comm.rank()));
  comm.allreduce("still works", values, ReduceOp::sum).wait();
  const int size = comm.size();
  EXPECT_EQ(values, std::vector<float>(5, static_cast<float>(size * (size - 1) / 2)));
}

void expect_duplicate_refused(Communicator& comm,
                              const std::function<Work(const std::string&)>& submit) {
  // The first operation of an early rank is certainly pending, because a rank is still missing.
  for (const bool zero_is_early : {true, false}) {
    const std::string name = zero_is_early ? "twice" : "twice more";
    const std::string barrier = name + " refused";
    if ((comm.rank() == 0) == zero_is_early) {
      auto first = submit(name);
      const auto error = error_of([&] { return submit(name); });
      EXPECT_EQ(error.code(), ErrorCode::duplicate_name);
      EXPECT_EQ(
          error.what(),
          fmt::format("\"{}\" is pending already on rank {}: it was submitted twice before its "
                      "Work was done. Wait for the first, or use another name",
                      name, comm.rank()));
      comm.barrier(barrier).wait();
      first.wait();
    } else {
      comm.barrier(barrier).wait();
      submit(name).wait();
    }
  }
  expect_still_works(comm);
}

std::string rank_zero_differs(const Communicator& comm, const std::string& a,
                              const std::string& b) {
  std::vector<int> others(static_cast<size_t>(comm.size()) - 1);
  std::iota(others.begin(), others.end(), 1);
  return fmt::format("rank 0 sent {}, {} sent {}", a, format_rank_set(others), b);
}

void in_process_set(Communicator& comm, const std::function<void(Communicator&)>& body) {
  const auto set = comm.split(comm.rank() % 2, comm.rank());
  ASSERT_EQ(set->size(), (comm.size() + 1 - comm.rank() % 2) / 2);
  ASSERT_EQ(set->rank(), comm.rank() / 2);
  body(*set);
  comm.barrier("sets are done").wait();
}

}  // namespace tutti::test
