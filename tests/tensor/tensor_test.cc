#include "tutti/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"
#include "tutti/tensor/device_plugin.h"
#include "tutti/tensor/device_runtime.h"

// A too large allocation must return null under the sanitizers, too.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace tutti {
namespace {

using testing::HasSubstr;

template <class Function>
std::string message_of(ErrorCode code, Function&& function) {
  return test::refusal(function, code);
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).count(), 24);
  EXPECT_EQ((Shape{2, 0, 4}).count(), 0);
  EXPECT_EQ((Shape{2, 3, 4}).row_count(), 12);
  EXPECT_EQ((Shape{0, 3, 4}).row_count(), 12);
  EXPECT_EQ(Shape().row_count(), 1);
  EXPECT_EQ((Shape{2, 3}).with_rows(7), (Shape{7, 3}));
  EXPECT_EQ(Shape().with_rows(7), Shape{7});
  EXPECT_EQ((Shape{6, 1, 5}).to_string(), "[6,1,5]");
  EXPECT_EQ(Shape().to_string(), "[]");
}

TEST(Shape, RefusesNegativeExtentsAndOverflow) {
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [] {
                         Shape{3, -1};
                       }),
            "shape [3,-1] has a negative extent");
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [] {
                         Shape{int64_t{1} << 40, 1 << 24};
                       }),
            "shape [1099511627776,16777216] has more than 2^63 elements");
  EXPECT_EQ((Shape{int64_t{1} << 40, 1 << 22}).count(), int64_t{1} << 62);
}

TEST(Shape, StridesOfDimensionsOfOneIndexDoNotCount) {
  const std::array<int64_t, 3> rows{77, 3, 1}, columns{77, 1, 2}, gaps{77, 4, 1};
  const Shape shape{1, 2, 3};
  EXPECT_TRUE(shape.is_row_major(rows));
  EXPECT_TRUE(shape.is_dense(rows));
  EXPECT_FALSE(shape.is_row_major(columns));
  EXPECT_TRUE(shape.is_dense(columns));
  EXPECT_FALSE(shape.is_dense(gaps));
}

TEST(Shape, AnEmptyShapeHasCountableRows) {
  EXPECT_EQ((Shape{0, int64_t{1} << 40, 1 << 22}).row_count(), int64_t{1} << 62);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [] {
                         Shape{0, int64_t{1} << 40, 1 << 24};
                       }),
            "shape [0,1099511627776,16777216] has more than 2^63 elements");
}

TEST(DataType, HasSizesNamesAndCppTypes) {
  EXPECT_EQ(dtype_of<double>(), DataType::f64);
  EXPECT_EQ(dtype_of<const float>(), DataType::f32);
  EXPECT_EQ(dtype_of<BFloat16>(), DataType::bf16);
  EXPECT_EQ(dtype_of<bool>(), DataType::boolean);
  EXPECT_EQ(dtype_of<char>(), std::is_signed_v<char> ? DataType::i8 : DataType::u8);
  EXPECT_EQ(dtype_of<long long>(), DataType::i64);
  EXPECT_EQ(dtype_of<unsigned long>(), DataType::u64);
  EXPECT_EQ(to_string(DataType::bf16), "bf16");
  EXPECT_EQ(size_of(DataType::f16), 2);
  EXPECT_EQ(size_of(DataType::boolean), 1);
  EXPECT_TRUE(is_float(DataType::bf16) && !is_float(DataType::i8));
  EXPECT_TRUE(is_integer(DataType::u64) && !is_integer(DataType::boolean));
  EXPECT_EQ(size_of(DataType::raw), 1);
  EXPECT_TRUE(!is_integer(DataType::raw) && !is_float(DataType::raw));
  EXPECT_FALSE(is_valid(static_cast<DataType>(kDataTypeCount)));
}

TEST(TensorView, BorrowsContiguousRanges) {
  std::vector<float> vector(5);
  const TensorView of_vector(vector);
  EXPECT_EQ(of_vector.as<float>(), vector.data());
  EXPECT_EQ(of_vector.shape(), Shape{5});
  EXPECT_EQ(of_vector.bytes(), 20);
  std::array<double, 3> array{};
  EXPECT_EQ(TensorView(array).dtype(), DataType::f64);
  int64_t plain[4] = {};
  EXPECT_EQ(TensorView(plain).count(), 4);
  EXPECT_EQ(TensorView(std::span(vector).subspan(2)).as<float>(), vector.data() + 2);
  static_assert(!std::is_constructible_v<TensorView, const std::vector<float>&>);
  static_assert(!std::is_constructible_v<TensorView, std::vector<std::string>&>);
}

TEST(TensorView, DefaultIsEmpty) {
  EXPECT_EQ(TensorView().count(), 0);
  EXPECT_EQ(TensorView().data(), nullptr);
}

TEST(TensorView, OfCudaMemoryKeepsItsDeviceAndStream) {
  float* memory = nullptr;
  int stream = 0;
  const auto view = TensorView::cuda(memory, 8, &stream, 2);
  EXPECT_EQ(to_string(view.device()), "cuda:2");
  EXPECT_EQ(view.stream().native, &stream);
  EXPECT_EQ(view.bytes(), 32);
}

TEST(TensorView, ReshapesOnlyToAsManyElements) {
  std::vector<float> data(6);
  const TensorView view(data);
  EXPECT_EQ(view.reshaped({2, 3}).data(), view.data());
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] {
                         view.reshaped({2, 4});
                       }),
            "a tensor of shape [6] cannot take shape [2,4]: 6 elements are not 8");
}

TEST(Tensor, IsZeroedAlignedAndShared) {
  const Tensor tensor({3, 5}, DataType::i32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_THAT(tensor.span<int32_t>(), testing::Each(0));
  const Tensor same = tensor;
  same.as<int32_t>()[4] = 9;
  EXPECT_EQ(tensor.reshaped({15}).as<int32_t>()[4], 9);
  EXPECT_TRUE(tensor);
  EXPECT_FALSE(Tensor());
}

TEST(Tensor, CloneHasItsOwnMemory) {
  const Tensor tensor({7}, DataType::f64);
  std::iota(tensor.as<double>(), tensor.as<double>() + 7, 1.0);
  const Tensor copy = tensor.clone();
  tensor.as<double>()[0] = -1;
  EXPECT_THAT(copy.span<double>(), testing::ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(copy.shape(), tensor.shape());
  EXPECT_EQ(Tensor({0, 4}, DataType::f32).clone().count(), 0);
}

TEST(Tensor, KeepsAForeignOwnerAlive) {
  auto owner = std::make_shared<std::vector<float>>(4, 2.0f);
  const std::weak_ptr<void> alive = owner;
  {
    const Tensor tensor(TensorView(*owner), owner);
    owner.reset();
    EXPECT_FALSE(alive.expired());
    EXPECT_EQ(tensor.as<float>()[3], 2.0f);
  }
  EXPECT_TRUE(alive.expired());
}

TEST(Tensor, TooLargeIsAnErrorThatSaysHowLarge) {
  const Shape huge{int64_t{1} << 61};
  EXPECT_EQ(message_of(ErrorCode::out_of_memory, [&] { Tensor(huge, DataType::f64); }),
            "a tensor f64[2305843009213693952] has more bytes than 64 bits count");
  EXPECT_EQ(message_of(ErrorCode::out_of_memory, [&] { Tensor(huge, DataType::u8); }),
            "cannot allocate 2305843009213693952 bytes on cpu");
}

TEST(DeviceRuntime, OfAKindThatNobodyRegisteredIsItsPlugins) {
  EXPECT_TRUE(has_device_runtime(DeviceKind::cpu));
  EXPECT_FALSE(has_device_runtime(DeviceKind::fake));
  EXPECT_THAT(
      message_of(ErrorCode::unavailable,
                 [] { load_device_plugin(DeviceKind::fake, "/nowhere/libtutti_device_fake.so"); }),
      HasSubstr("there is no /nowhere/libtutti_device_fake.so: support for fake was"));
}

TEST(Device, NamesGoThereAndBack) {
  EXPECT_EQ(device_of("cpu"), Device{});
  EXPECT_EQ(device_of("cuda"), (Device{DeviceKind::cuda, 0}));
  EXPECT_EQ(device_of("cuda:3"), (Device{DeviceKind::cuda, 3}));
  EXPECT_EQ(device_of(to_string(Device{DeviceKind::cuda, 12})), (Device{DeviceKind::cuda, 12}));
  EXPECT_EQ(device_of("fake-cuda"), (Device{DeviceKind::fake, 0}));
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:x", "CUDA"})
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { device_of(name); }),
                HasSubstr("there is no device \"" + std::string(name) +
                          "\"; expected cpu, cuda or cuda:1"));
}

TEST(CpuRuntime, EverythingHasHappenedWhenTheCallReturns) {
  auto& cpu = device_runtime(DeviceKind::cpu);
  const StreamRef stream = cpu.create_stream({});
  void* event = cpu.create_event({});
  int source = 5, target = 0;
  uint64_t word = 0;
  bool called = false;
  cpu.copy(&target, &source, sizeof target, stream);
  cpu.host_function(stream, [&] { called = true; });
  cpu.write_word(stream, &word, 3);
  cpu.wait_word(stream, &word, 2);
  cpu.record(event, stream);
  cpu.wait_event(stream, event);
  EXPECT_TRUE(cpu.reached(event));
  cpu.synchronize(stream);
  EXPECT_EQ(target, 5);
  EXPECT_TRUE(called);
  EXPECT_EQ(word, 3u);
  cpu.destroy_event(event);
  cpu.destroy_stream(stream);
}

}  // namespace
}  // namespace tutti
