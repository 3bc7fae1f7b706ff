#include "tutti/adapters/nn/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// A DataLoader's thread uses the object itself, so it cannot be moved or copied.
static_assert(!std::is_move_constructible_v<DataLoader> &&
              !std::is_copy_constructible_v<DataLoader>);

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
  // Returns the message of the Error that `read` must throw.
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

TEST_F(Files, SequencesOfATextAreEqualForAnyNumberOfRanks) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  const TextDataset data(write("text", text), 7);
  const auto joined = data.sequences(3, 4, 0, 5);
  EXPECT_EQ(joined.input.shape(), (Shape{5, 7}));
  std::set<int64_t> places;
  for (int64_t row = 0; row < 5; ++row) {
    const auto alone = data.sequences(3, 4, row, 1);
    places.insert(alone.input.as<int64_t>()[0]);
    for (int64_t i = 0; i < 7; ++i) {
      const int64_t byte = joined.input.as<int64_t>()[row * 7 + i];
      EXPECT_EQ(byte, joined.input.as<int64_t>()[row * 7] + i);
      EXPECT_EQ(joined.next.as<int64_t>()[row * 7 + i], byte + 1);
      EXPECT_EQ(alone.input.as<int64_t>()[i], byte);
      EXPECT_EQ(alone.next.as<int64_t>()[i], byte + 1);
    }
  }
  EXPECT_GT(places.size(), 1u);
  EXPECT_NE(data.sequences(3, 5, 0, 1).input.as<int64_t>()[0], joined.input.as<int64_t>()[0]);
  EXPECT_NE(data.sequences(4, 4, 0, 1).input.as<int64_t>()[0], joined.input.as<int64_t>()[0]);
  EXPECT_EQ(data.sequences(3, 4, 5, 0).input.count(), 0);
  // With one byte more than a sequence, a text has exactly one position to start from.
  const TextDataset least(write("least", text.substr(0, 8)), 7);
  EXPECT_EQ(least.sequences(1, 1, 0, 1).next.as<int64_t>()[6], 7);
  EXPECT_THAT(refusal([&] { TextDataset(write("short", text.substr(0, 7)), 7); }),
              HasSubstr("7 bytes, expected more than 7 for one sequence; give another text"));
  EXPECT_THAT(refusal([&] { TextDataset(write("text", text), 0); }),
              HasSubstr("256 bytes, expected more than 0 for one sequence; give another text, or "
                        "sequences of 1 byte to fewer than it has"));
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
  EXPECT_NE(refusal([&] {
              read_mnist(write("tiny", "ab"), labels);
            }).find("2 bytes are too few for an IDX header of 16"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              read_mnist(images, write("wrong", kLabelsHeader + std::string("\5\x0b")));
            }).find("a label is 11, expected 0 to 9"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              read_mnist(folder_ + "none", labels);
            }).find("cannot open \"" + folder_ + "none\""),
            std::string::npos);
  const auto three = write("three", std::string("\0\0\x08\x01\0\0\0\x03", 8) + "\1\2\3");
  EXPECT_NE(
      refusal([&] { read_mnist(images, three); }).find("3 labels do not fit the 2 images of \""),
      std::string::npos);
  // The product of the extents overflows.
  const auto huge = write("huge", std::string("\0\0\x08\x03", 4) + std::string(12, '\xff'));
  EXPECT_NE(refusal([&] { read_mnist(huge, labels); }).find("more bytes than 64 bits"),
            std::string::npos);
  // There are no images, but the product of the other extents would overflow.
  const auto none = write("none", std::string("\0\0\x08\x03\0\0\0\0", 8) + std::string(8, '\xff'));
  EXPECT_NE(refusal([&] { read_mnist(none, labels); }).find("more bytes than 64 bits"),
            std::string::npos);
}

TEST_F(Files, DamagedGzipIsRefused) {
  std::ifstream in(kMnist + "/t10k-labels-idx1-ubyte.gz", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto cut = write("cut.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(refusal([&] { read_file(cut); }), HasSubstr("is cut off or damaged: "));
  // read_file() has a limit for the unpacked size.
  const auto whole = read_file(write("whole.gz", bytes)).size();
  EXPECT_THAT(refusal([&] { read_file(folder_ + "whole.gz", whole - 1); }),
              HasSubstr("holds more than " + std::to_string(whole - 1) + " bytes"));
  bytes[bytes.size() / 2] ^= 0x55;
  EXPECT_THAT(refusal([&] { read_file(write("flip.gz", bytes)); }),
              AnyOf(HasSubstr("cannot be unpacked: "), HasSubstr("is cut off or damaged: ")));
}

TEST_F(Files, Cifar10) {
  std::string record(1 + 3 * 32 * 32, '\7');
  const auto data = read_cifar10({write("a", record + record), write("b", record)});
  EXPECT_EQ(data.images.shape(), (Shape{3, 3, 32, 32}));
  EXPECT_EQ(data.labels.as<uint8_t>()[2], 7);
  EXPECT_NE(refusal([&] {
              read_cifar10({write("c", record + "x")});
            }).find("not a whole number of records"),
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

TEST(DataLoader, CountsTheStepsInWhichARankGetsAnImage) {
  for (const int64_t count : {16, 17, 20, 21, 24})
    for (int rank = 0; rank < 2; ++rank) {
      const auto data = numbers(count);
      DataLoader loader(data, {.batch = 4, .rank = rank, .size = 2, .drop_last = false});
      int64_t steps = 0;
      while (loader.next()) ++steps;
      EXPECT_EQ(loader.steps_per_epoch(), steps) << count << " images, rank " << rank;
    }
}

TEST(DataLoader, GoesOnWhereItWas) {
  const auto data = numbers(64);
  DataLoader first(data, {.batch = 4, .seed = 9});
  for (int i = 0; i < 21; ++i) first.next();  // ends in the second epoch
  const auto position = first.position();
  DataLoader second(data, {.batch = 4, .seed = 9});
  second.restore(position);
  for (int i = 0; i < 5; ++i) {
    const auto a = first.next(), b = second.next();
    ASSERT_EQ(id_of(*a, 3), id_of(*b, 3));
  }
}

std::vector<int> order_of(DataLoader& loader) {
  std::vector<int> ids;
  for (const auto& batch : loader)
    for (int64_t i = 0; i < batch.labels.count(); ++i) ids.push_back(id_of(batch, i));
  return ids;
}

TEST(DataLoader, ShufflesAnewInEachEpoch) {
  const auto data = numbers(64);
  DataLoader loader(data, {.batch = 4, .seed = 9});
  const auto first = order_of(loader), second = order_of(loader);
  EXPECT_EQ(loader.position().epoch, 2);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<int>(first.begin(), first.end()).size(), 64u);
  EXPECT_EQ(std::set<int>(second.begin(), second.end()).size(), 64u);
  // A new loader with the same seed has the same order in both epochs.
  DataLoader again(data, {.batch = 4, .seed = 9});
  EXPECT_EQ(order_of(again), first);
  EXPECT_EQ(order_of(again), second);
  DataLoader plain(data, {.batch = 4, .shuffle = false});
  EXPECT_EQ(order_of(plain), order_of(plain));
}

// A job is stopped after a few steps of an epoch, again and again, and continues with other numbers
// of ranks.
TEST(DataLoader, AnEpochGoesOnWithAnyNumberOfRanks) {
  const auto data = numbers(251);
  std::mt19937 random(31);
  LoaderPosition position;
  std::multiset<int> seen;
  int resumes = 0;
  for (; position.epoch == 0; ++resumes) {
    const int size = 1 + static_cast<int>(random() % 5), steps = 1 + static_cast<int>(random() % 3);
    const int64_t batch = 1 + static_cast<int>(random() % 2);
    LoaderPosition reached;
    for (int rank = size - 1; rank >= 0; --rank) {
      DataLoader loader(data, {.batch = batch, .rank = rank, .size = size, .drop_last = false});
      loader.restore(position);
      for (int step = 0; step < steps && loader.position().epoch == 0; ++step)
        if (const auto images = loader.next())
          for (int64_t i = 0; i < images->labels.count(); ++i) seen.insert(id_of(*images, i));
      reached = loader.position();
    }
    position = reached;
  }
  EXPECT_GE(resumes, 20);
  EXPECT_EQ(seen.size(), 251U);
  EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 251U);
}

// The batch that was prepared before restore() must not be returned after it.
TEST(DataLoader, RestoringForgetsWhatWasPreparedAhead) {
  const auto data = numbers(64);
  DataLoader loader(data, {.batch = 4, .shuffle = false});
  for (int i = 0; i < 3; ++i) loader.next();
  loader.restore({0, 9});
  EXPECT_EQ(id_of(*loader.next(), 0), 36);
  EXPECT_EQ(id_of(*loader.next(), 0), 40);
  loader.restore({0, 0});
  EXPECT_EQ(id_of(*loader.next(), 0), 0);
  test::expect_refused("DataLoader: epoch 0 and step -1 are not a position; both must be 0 or more",
                       [&] {
                         loader.restore({0, -1});
                       });
  test::expect_refused("DataLoader: epoch -1 and step 0 are not a position", [&] {
    loader.restore({-1, 0});
  });
  EXPECT_EQ(loader.position().step, 1);
  EXPECT_EQ(id_of(*loader.next(), 0), 4);
}

TEST(DataLoader, AnOlderOrderIsRefusedWithinAShuffledEpochOnly) {
  const auto data = numbers(64);
  DataLoader loader(data, {.batch = 4}), plain(data, {.batch = 4, .shuffle = false});
  test::expect_error(ErrorCode::corrupt_data,
                     "DataLoader: the saved epoch has the samples in order 1",
                     [&] { loader.restore({.epoch = 2, .step = 3, .order = 1}); });
  EXPECT_EQ(loader.position().epoch, 0);
  loader.restore({.epoch = 2, .step = 0, .order = 1});
  EXPECT_EQ(loader.position().epoch, 2);
  EXPECT_EQ(loader.position().order, kSampleOrder);
  plain.restore({.epoch = 2, .step = 3, .order = 1});
  EXPECT_EQ(id_of(*plain.next(), 0), 12);
}

// The thread that prepares batches exists only in the parent, so a fork that waited for it would
// hang.
TEST(DataLoader, AForkMayDestroyItAndNoMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a fork may inherit the sanitizer's allocator locked by another thread";
#endif
  const auto data = numbers(64);
  auto loader = std::make_unique<DataLoader>(data, LoaderOptions{.batch = 4, .seed = 9});
  DataLoader whole(data, {.batch = 4, .seed = 9});
  for (int i = 0; i < 8; ++i) {
    const auto batch = loader->next();
    const auto wanted = whole.next();
    ASSERT_EQ(id_of(*batch, 3), id_of(*wanted, 3));
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);
      int code = 1;
      try {
        loader->next();
      } catch (const Error& error) {
        const std::string_view text =
            "DataLoader: this process is a fork of the one that made it, whose thread prepares the "
            "batches; make a new one here";
        code = error.code() == ErrorCode::closed && error.what() == text ? 0 : 2;
      }
      loader.reset();
      ::_exit(code);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(DataLoader, RefusesWhatCannotBe) {
  const auto data = numbers(8);
  const auto expect_refused = [&](const char* text, const LoaderOptions& options) {
    test::expect_refused(text, [&] { DataLoader(data, options); });
  };
  expect_refused("a batch of 0 images, expected at least 1", {.batch = 0});
  expect_refused("rank 2 of 2 ranks", {.batch = 1, .rank = 2, .size = 2});
  expect_refused("8 images are too few for one step of 1 rank with 9 each", {.batch = 9});
}

}  // namespace
}  // namespace tutti::nn
