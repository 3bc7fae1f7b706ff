#include <dlpack/dlpack.h>
#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using testing::HasSubstr;

// A dense tensor of another library with 2 x 3 floats. It counts how often it is deleted.
struct Foreign {
  std::vector<float> data{1, 2, 3, 4, 5, 6};
  std::vector<int64_t> shape{2, 3}, strides{3, 1};
  int deleted = 0;
  DLManagedTensor managed{};

  Foreign() {
    managed.dl_tensor = {data.data(),  {kDLCPU, 0},    2, {kDLFloat, 32, 1},
                         shape.data(), strides.data(), 0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->deleted;
    };
  }
  DLTensor& tensor() { return managed.dl_tensor; }
};

// Returns the message with which from_dlpack refuses. Checks that the tensor stayed with its owner.
std::string refusal(Foreign& foreign) {
  const auto text = test::refusal([&] { from_dlpack(&foreign.managed); });
  EXPECT_EQ(foreign.deleted, 0);
  return text;
}

TEST(FromDlpack, SharesTheMemoryAndDeletesOnce) {
  Foreign foreign;
  int stream = 0;
  {
    const Tensor tensor = from_dlpack(&foreign.managed, {&stream});
    const Tensor copy = tensor.reshaped({6});
    EXPECT_EQ(tensor.shape(), (Shape{2, 3}));
    EXPECT_EQ(tensor.dtype(), DataType::f32);
    EXPECT_EQ(tensor.device(), Device{});
    EXPECT_EQ(tensor.view().stream().native, &stream);
    EXPECT_EQ(tensor.as<float>(), foreign.data.data());
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(FromDlpack, ATensorWithoutADeleterIsBorrowed) {
  Foreign foreign;
  foreign.managed.deleter = nullptr;
  { const Tensor tensor = from_dlpack(&foreign.managed); }
  EXPECT_EQ(foreign.deleted, 0);
}

TEST(FromDlpack, HonoursTheByteOffsetAndNullStrides) {
  Foreign foreign;
  foreign.shape = {1, 2};
  foreign.tensor().strides = nullptr;
  foreign.tensor().byte_offset = 8;
  EXPECT_EQ(from_dlpack(&foreign.managed).as<float>()[0], 3.0f);
}

TEST(FromDlpack, IgnoresStridesThatAreNeverUsed) {
  Foreign foreign;
  foreign.shape = {1, 6};
  foreign.strides = {77, 1};
  EXPECT_EQ(from_dlpack(&foreign.managed).count(), 6);
  Foreign empty;
  empty.shape = {0, 3};
  empty.strides = {9, 9};
  empty.tensor().data = nullptr;
  EXPECT_EQ(from_dlpack(&empty.managed).count(), 0);
}

TEST(FromDlpack, KnowsEveryElementTypeAndBool) {
  const std::tuple<uint8_t, uint8_t, DataType> types[] = {
      {kDLFloat, 64, DataType::f64},   {kDLFloat, 32, DataType::f32}, {kDLFloat, 16, DataType::f16},
      {kDLBfloat, 16, DataType::bf16}, {kDLInt, 8, DataType::i8},     {kDLInt, 16, DataType::i16},
      {kDLInt, 32, DataType::i32},     {kDLInt, 64, DataType::i64},   {kDLUInt, 8, DataType::u8},
      {kDLUInt, 16, DataType::u16},    {kDLUInt, 32, DataType::u32},  {kDLUInt, 64, DataType::u64},
      {6, 8, DataType::boolean}};
  for (const auto& [code, bits, dtype] : types) {
    Foreign foreign;
    foreign.shape = {1, 1};
    foreign.tensor().dtype = {code, bits, 1};
    EXPECT_EQ(from_dlpack(&foreign.managed).dtype(), dtype);
  }
}

TEST(FromDlpack, KnowsItsDevices) {
  const std::pair<int, Device> devices[] = {{kDLCPU, {}},
                                            {kDLCUDAHost, {}},
                                            {kDLCUDA, {DeviceKind::cuda, 1}},
                                            {kDLCUDAManaged, {DeviceKind::cuda, 1}},
                                            {kDLExtDev, {DeviceKind::fake, 1}}};
  for (const auto& [type, device] : devices) {
    Foreign foreign;
    foreign.tensor().device = {static_cast<DLDeviceType>(type), 1};
    EXPECT_EQ(from_dlpack(&foreign.managed).device(), device);
  }
}

TEST(FromDlpack, RefusesGapsBetweenRows) {
  Foreign foreign;
  foreign.strides = {4, 1};
  EXPECT_EQ(refusal(foreign),
            "a DLPack tensor of shape [2,3] has strides [4,1]; expected the dense [3,1]: make it "
            "contiguous first");
  foreign.strides = {1, 2};
  EXPECT_THAT(refusal(foreign), HasSubstr("strides [1,2]"));
}

TEST(FromDlpack, RefusesLanesTypesAndDevices) {
  Foreign lanes, complex_type, four_bits, metal, unknown;
  lanes.tensor().dtype.lanes = 4;
  EXPECT_EQ(refusal(lanes), "a DLPack tensor has 4 lanes per element; expected 1");
  complex_type.tensor().dtype = {kDLComplex, 64, 1};
  EXPECT_THAT(refusal(complex_type),
              HasSubstr("a DLPack tensor has type code 5 with 64 bits; expected f64, f32"));
  four_bits.tensor().dtype = {kDLInt, 4, 1};
  EXPECT_THAT(refusal(four_bits), HasSubstr("type code 0 with 4 bits"));
  metal.tensor().device = {kDLMetal, 0};
  EXPECT_THAT(refusal(metal), HasSubstr("lives on device type 8"));
  const int newer_than_the_header = 17;
  std::memcpy(&unknown.tensor().device.device_type, &newer_than_the_header, sizeof(int));
  EXPECT_THAT(refusal(unknown),
              HasSubstr("a DLPack tensor lives on device type 17; expected cpu (1) or cuda (2)"));
}

TEST(FromDlpack, RefusesDamagedTensors) {
  Foreign no_data, no_shape, negative, huge;
  no_data.tensor().data = nullptr;
  EXPECT_EQ(refusal(no_data), "a DLPack tensor f32[2,3] has no data");
  no_shape.tensor().shape = nullptr;
  EXPECT_EQ(refusal(no_shape), "a DLPack tensor has 2 dimensions but no shape");
  negative.shape = {2, -3};
  EXPECT_THAT(refusal(negative), HasSubstr("negative extent"));
  huge.shape = {int64_t{1} << 62, 8};
  EXPECT_THAT(refusal(huge), HasSubstr("more than 2^63 elements"));
  test::expect_refused("a DLPack tensor is null", [] { from_dlpack(nullptr); });
}

TEST(ToDlpack, KeepsTheMemoryUntilItsDeleterIsCalled) {
  auto owner = std::make_shared<std::vector<double>>(6, 1.5);
  const std::weak_ptr<std::vector<double>> alive = owner;
  DLManagedTensor* managed = nullptr;
  {
    const TensorView view(owner->data(), Shape{3, 2}, DataType::f64);
    const Tensor tensor(view, std::move(owner));
    managed = to_dlpack(tensor);
  }
  ASSERT_FALSE(alive.expired());
  const DLTensor& tensor = managed->dl_tensor;
  EXPECT_EQ(tensor.ndim, 2);
  EXPECT_EQ(tensor.shape[0], 3);
  EXPECT_EQ(tensor.shape[1], 2);
  EXPECT_EQ(tensor.strides[0], 2);
  EXPECT_EQ(tensor.strides[1], 1);
  EXPECT_EQ(tensor.device.device_type, kDLCPU);
  EXPECT_EQ(static_cast<double*>(tensor.data)[5], 1.5);
  managed->deleter(managed);
  EXPECT_TRUE(alive.expired());
}

TEST(ToDlpack, RoundTripsEveryTypeAndShape) {
  for (int i = 0; i < kDataTypeCount; ++i)
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{5}, Shape{2, 1, 3}}) {
      const Tensor tensor(shape, static_cast<DataType>(i));
      const Tensor back = from_dlpack(to_dlpack(tensor));
      // DLPack has no raw bytes.
      EXPECT_EQ(back.dtype(), tensor.dtype() == DataType::raw ? DataType::u8 : tensor.dtype());
      EXPECT_EQ(back.shape(), shape);
      EXPECT_EQ(back.data(), tensor.data());
    }
}

}  // namespace
}  // namespace tutti
