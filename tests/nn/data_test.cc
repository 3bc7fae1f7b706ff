#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "tutti/adapters/nn/checkpoint.h"
#include "tutti/adapters/nn/data_loader.h"
#include "tutti/adapters/nn/dataset.h"
#include "tutti/adapters/nn/optimizers.h"
#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

const std::string kMnist = TUTTI_MNIST;

class Files : public testing::Test {
 protected:
  Files() : folder_(testing::TempDir() + "nn_data_" + std::to_string(::getpid()) + "/") {
    std::filesystem::create_directories(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + name, std::ios::binary) << bytes;
    return folder_ + name;
  }
  // The message of the Error that reading must throw.
  static std::string refusal(const std::function<void()>& read) {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  const std::string folder_;
};

const std::string kImagesHeader("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02", 16);
const std::string kLabelsHeader("\0\0\x08\x01\0\0\0\x02", 8);

TEST_F(Files, MnistAsShipped) {
  const auto data =
      read_mnist(kMnist + "/train-images-idx3-ubyte.gz", kMnist + "/train-labels-idx1-ubyte.gz");
  EXPECT_EQ(data.images.shape(), (Shape{8000, 1, 28, 28}));
  EXPECT_EQ(data.labels.count(), 8000);
  std::set<int> seen;
  for (const uint8_t label : data.labels.span<uint8_t>()) seen.insert(label);
  EXPECT_EQ(seen.size(), 10u);
}

TEST_F(Files, PlainIdxAndWhatIsWrongWithIt) {
  const auto images = write("images", kImagesHeader + std::string("\1\2\3\4"));
  const auto labels = write("labels", kLabelsHeader + std::string("\5\6"));
  const auto data = read_mnist(images, labels);
  EXPECT_EQ(data.images.as<uint8_t>()[3], 4);
  EXPECT_EQ(data.labels.as<uint8_t>()[1], 6);
  EXPECT_NE(refusal([&] {
              read_mnist(write("other", kLabelsHeader + std::string(20, 1)), labels);
            }).find("begins with 2049, expected the IDX magic 2051"),
            std::string::npos);
  const auto cut = write("cut", kImagesHeader + std::string("\1\2\3"));
  EXPECT_NE(refusal([&] { read_mnist(cut, labels); }).find("promises 4 bytes of data, 3 are there"),
            std::string::npos);
  EXPECT_NE(refusal([&] { read_mnist(write("tiny", "ab"), labels); }).find("2 bytes are too few"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              read_mnist(images, write("wrong", kLabelsHeader + std::string("\5\x0b")));
            }).find("a label is 11, expected 0 to 9"),
            std::string::npos);
  EXPECT_NE(refusal([&] { read_mnist(folder_ + "none", labels); }).find("cannot open"),
            std::string::npos);
  // Extents whose product overflows.
  const auto huge = write("huge", std::string("\0\0\x08\x03", 4) + std::string(12, '\xff'));
  EXPECT_NE(refusal([&] { read_mnist(huge, labels); }).find("more bytes than 64 bits"),
            std::string::npos);
}

TEST_F(Files, DamagedGzipIsRefused) {
  std::ifstream in(kMnist + "/t10k-labels-idx1-ubyte.gz", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto cut = write("cut.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_NE(refusal([&] { read_file(cut); }), "no error");
  bytes[bytes.size() / 2] ^= 0x55;
  EXPECT_NE(refusal([&] { read_file(write("flip.gz", bytes)); }), "no error");
}

TEST_F(Files, Cifar10) {
  std::string record(1 + 3 * 32 * 32, '\7');
  const auto data = read_cifar10({write("a", record + record), write("b", record)});
  EXPECT_EQ(data.images.shape(), (Shape{3, 3, 32, 32}));
  EXPECT_EQ(data.labels.as<uint8_t>()[2], 7);
  EXPECT_NE(
      refusal([&] { read_cifar10({write("c", record + "x")}); }).find("no whole number of records"),
      std::string::npos);
}

Dataset numbers(int64_t count) {
  Dataset data{Tensor(Shape{count, 1, 1, 1}, DataType::u8), Tensor(Shape{count}, DataType::u8), 10};
  for (int64_t i = 0; i < count; ++i) data.images.as<uint8_t>()[i] = static_cast<uint8_t>(i);
  return data;
}

int id_of(const Batch& batch, int64_t i) {
  return static_cast<int>(std::lround((batch.images.as<float>()[i] + 0.5f) * 255));
}

TEST(DataLoader, EverySampleOnceAndTheSameGlobalBatchesForAnyNumberOfRanks) {
  const auto data = numbers(200);
  std::vector<std::set<int>> one;
  DataLoader alone(data, {.batch = 16, .seed = 5});
  for (const auto& batch : alone) {
    auto& ids = one.emplace_back();
    for (int64_t i = 0; i < batch.labels.count(); ++i) ids.insert(id_of(batch, i));
  }
  ASSERT_EQ(one.size(), 12u);
  std::vector<std::set<int>> four(one.size());
  for (int rank = 0; rank < 4; ++rank) {
    DataLoader loader(data, {.batch = 4, .rank = rank, .size = 4, .seed = 5});
    size_t step = 0;
    for (const auto& batch : loader) {
      for (int64_t i = 0; i < batch.labels.count(); ++i)
        EXPECT_TRUE(four[step].insert(id_of(batch, i)).second);
      ++step;
    }
  }
  EXPECT_EQ(one, four);
}

TEST(DataLoader, KeepsTheTailIfAsked) {
  const auto data = numbers(21);
  std::set<int> seen;
  for (int rank = 0; rank < 2; ++rank) {
    DataLoader loader(data, {.batch = 4, .rank = rank, .size = 2, .drop_last = false});
    for (const auto& batch : loader)
      for (int64_t i = 0; i < batch.labels.count(); ++i)
        EXPECT_TRUE(seen.insert(id_of(batch, i)).second);
  }
  EXPECT_EQ(seen.size(), 21u);
}

TEST(DataLoader, GoesOnWhereItWas) {
  const auto data = numbers(64);
  DataLoader first(data, {.batch = 4, .seed = 9});
  for (int i = 0; i < 21; ++i) first.next();  // into the second epoch
  const auto position = first.position();
  DataLoader second(data, {.batch = 4, .seed = 9});
  second.restore(position);
  for (int i = 0; i < 5; ++i) {
    const auto a = first.next(), b = second.next();
    ASSERT_EQ(id_of(*a, 3), id_of(*b, 3));
  }
}

TEST(DataLoader, RefusesWhatCannotBe) {
  const auto data = numbers(8);
  EXPECT_THROW(DataLoader(data, {.batch = 0}), Error);
  EXPECT_THROW(DataLoader(data, {.batch = 1, .rank = 2, .size = 2}), Error);
  EXPECT_THROW(DataLoader(data, {.batch = 9}), Error);
}

TEST_F(Files, CheckpointsComeBackToTheBit) {
  Parameter parameter{"w", Tensor(Shape{3, 2}, DataType::f32), Tensor(Shape{3, 2}, DataType::f32),
                      std::make_shared<GradientReady>()};
  for (int i = 0; i < 6; ++i) parameter.value.as<float>()[i] = 0.1f * static_cast<float>(i);
  for (float& g : parameter.gradient.span<float>()) g = 0.7f;
  Adam adam({parameter}, {});
  adam.step();
  const auto file = folder_ + "checkpoint";
  save_training(file, adam.parameters(), adam.state(), {3, 14});
  const auto saved = parameter.value.clone();
  adam.step();
  const auto next = parameter.value.clone();
  const auto position = load_training(file, adam.parameters(), adam.state());
  EXPECT_EQ(position.epoch, 3);
  EXPECT_EQ(position.step, 14);
  EXPECT_EQ(std::memcmp(saved.data(), parameter.value.data(), 24), 0);
  adam.step();
  EXPECT_EQ(std::memcmp(next.data(), parameter.value.data(), 24), 0);
}

TEST_F(Files, DamagedCheckpointsAreRefusedAndChangeNothing) {
  Checkpoint checkpoint;
  checkpoint.tensors["parameter.w"] = Tensor(Shape{4}, DataType::f32);
  const auto file = folder_ + "checkpoint";
  checkpoint.write(file);
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  for (const size_t length : {size_t{0}, size_t{7}, size_t{20}, bytes.size() - 1})
    EXPECT_NE(refusal([&] { Checkpoint::read(write("short", bytes.substr(0, length))); }),
              "no error");
  EXPECT_NE(refusal([&] { Checkpoint::read(write("long", std::string(8, '\xff') + "{}")); }),
            "no error");
  Parameter other{"w", Tensor(Shape{5}, DataType::f32), Tensor(Shape{5}, DataType::f32),
                  std::make_shared<GradientReady>()};
  EXPECT_NE(refusal([&] {
              load_training(file, {other}, {});
            }).find("\"parameter.w\" is f32[4], expected f32[5]"),
            std::string::npos);
}

}  // namespace
}  // namespace tutti::nn
