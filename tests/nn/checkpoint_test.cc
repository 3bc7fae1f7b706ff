// Checkpoints: what is written comes back, what is damaged is refused, what fails leaves the old
// one.

#include "tutti/adapters/nn/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/ranks.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/nn/optimizers.h"
#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

using testing::HasSubstr;

class Checkpoints : public testing::Test {
 protected:
  Checkpoints()
      : folder_(testing::TempDir() + "nn_checkpoint_" + std::to_string(::getpid()) + "/") {
    std::filesystem::create_directories(folder_);
  }
  ~Checkpoints() override { std::filesystem::remove_all(folder_); }
  std::string put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + name, std::ios::binary) << bytes;
    return folder_ + name;
  }
  static std::string contents(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// A file with this header and as many bytes of data.
  std::string forge(const std::string& header, size_t data) {
    const uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return put("forged", bytes + header + std::string(data, '\1'));
  }
  /// The message of the Error that reading must throw.
  static std::string refusal(const std::function<void()>& read,
                             ErrorCode code = ErrorCode::corrupt_data) {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "no error";
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  const std::string folder_;
};

Checkpoint filled(float value, int64_t count) {
  Checkpoint checkpoint;
  Tensor tensor(Shape{count}, DataType::f32);
  for (float& element : tensor.span<float>()) element = value;
  checkpoint.tensors.emplace("w", tensor);
  checkpoint.words["made"] = "here";
  return checkpoint;
}

TEST_F(Checkpoints, CheckpointsComeBackToTheBit) {
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
  EXPECT_EQ(position.order, kSampleOrder);
  // The first version did not say in which order the samples come.
  auto older = Checkpoint::read(file);
  EXPECT_EQ(older.words.erase("order"), 1U);
  older.write(file + ".older");
  EXPECT_EQ(load_training(file + ".older", adam.parameters(), adam.state()).order, 1);
  EXPECT_EQ(std::memcmp(saved.data(), parameter.value.data(), 24), 0);
  adam.step();
  EXPECT_EQ(std::memcmp(next.data(), parameter.value.data(), 24), 0);
}

// What one rank wrote with save_training() loads on any number of them.
TEST_F(Checkpoints, TheSingleFileLoadsAsAFolderDoes) {
  const auto file = folder_ + "checkpoint";
  const auto make = [] {
    return Parameter{"w", Tensor(Shape{3, 2}, DataType::f32), Tensor(Shape{3, 2}, DataType::f32),
                     std::make_shared<GradientReady>()};
  };
  auto saved = make();
  for (int i = 0; i < 6; ++i) saved.value.as<float>()[i] = 0.1f * static_cast<float>(i);
  for (float& g : saved.gradient.span<float>()) g = 0.7f;
  Adam before({saved}, {});
  before.step();
  save_training(file, before.parameters(), before.state(), {3, 14});
  const auto body = [&](Communicator& comm) {
    auto loaded = make();
    Adam adam({loaded}, {});
    auto tensors = placed_parameters(adam.parameters());
    for (auto& state : placed_state(adam.state())) tensors.push_back(std::move(state));
    const auto found = CheckpointFolder(comm, file).load(tensors);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->words.at("epoch"), "3");
    EXPECT_EQ(found->words.at("step"), "14");
    EXPECT_EQ(found->members, 1);
    EXPECT_EQ(std::memcmp(saved.value.data(), loaded.value.data(), 24), 0);
    for (size_t i = 0; i < adam.state().size(); ++i) {
      const auto &is = adam.state()[i].tensor, &was = before.state()[i].tensor;
      EXPECT_EQ(std::memcmp(is.data(), was.data(), static_cast<size_t>(was.bytes())), 0);
    }
  };
  for (const int size : {1, 3}) test::run_threads(size, body);
}

TEST_F(Checkpoints, DamagedCheckpointsAreRefusedAndChangeNothing) {
  Checkpoint checkpoint;
  checkpoint.tensors["parameter.w"] = Tensor(Shape{4}, DataType::f32);
  const auto file = folder_ + "checkpoint";
  checkpoint.write(file);
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  for (const size_t length : {size_t{0}, size_t{7}, size_t{20}, bytes.size() - 1})
    EXPECT_NE(refusal([&] { Checkpoint::read(put("short", bytes.substr(0, length))); }),
              "no error");
  EXPECT_THAT(refusal([&] { Checkpoint::read(put("short", bytes.substr(0, 7))); }),
              HasSubstr("7 bytes are too few"));
  EXPECT_THAT(refusal([&] { Checkpoint::read(put("long", std::string(8, '\xff') + "{}")); }),
              HasSubstr("its header should have 18446744073709551615 bytes, 2 are there"));
  Parameter other{"w", Tensor(Shape{5}, DataType::f32), Tensor(Shape{5}, DataType::f32),
                  std::make_shared<GradientReady>()};
  EXPECT_NE(refusal([&] {
              load_training(file, {other}, {});
            }).find("\"parameter.w\" is f32[4], expected f32[5]"),
            std::string::npos);
  EXPECT_EQ(other.value.as<float>()[0], 0.0f);
  other.name = "another";
  EXPECT_THAT(refusal([&] { load_training(file, {other}, {}); }),
              HasSubstr("\"parameter.another\" is missing"));
}

// gzip files begin with 1f 8b, and so may the length of a header.
TEST_F(Checkpoints, AHeaderOfAnyLengthIsNoGzip) {
  constexpr size_t kGzip = 0x8b1f;
  const std::string begin =
      R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"__metadata__":{"pad":")";
  const std::string pad(kGzip - begin.size() - 3, 'x');
  const auto file = forge(begin + pad + "\"}}", 16);
  ASSERT_EQ(contents(file).substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(Checkpoint::read(file).words.at("pad"), pad);
}

TEST_F(Checkpoints, ForgedHeadersAreCorruptData) {
  const auto read = [&](const std::string& shape, uint64_t end) {
    const auto file = forge("{\"w\":{\"dtype\":\"F32\",\"shape\":" + shape +
                                ",\"data_offsets\":[0," + std::to_string(end) + "]}}",
                            16);
    return refusal([&] { Checkpoint::read(file); });
  };
  EXPECT_EQ(read("[4]", 16), "no error");
  EXPECT_THAT(read("[-4]", 16), HasSubstr("is no whole number"));
  EXPECT_THAT(read("[-2,-2]", 16), HasSubstr("is no whole number"));
  // 2^62 + 4 elements have, in 64 bits, as many bytes as four.
  EXPECT_THAT(read("[4611686018427387908]", 16), HasSubstr("more bytes than 64 bits"));
  EXPECT_THAT(read("[4611686018427387904,4]", 16), HasSubstr("more than 2^63 elements"));
  EXPECT_THAT(read("[5]", 20), HasSubstr("\"w\" lies at 0 to 20 of 16 bytes and should have 20"));
  EXPECT_THAT(read("[5]", 16), HasSubstr("\"w\" lies at 0 to 16 of 16 bytes and should have 20"));
  EXPECT_THAT(read("\"four\"", 16), HasSubstr("\"four\" is no whole number"));
  EXPECT_THAT(read("[4.5]", 16), HasSubstr("is no whole number from 0 to 2^63 - 1"));
  EXPECT_THAT(read("[1e99]", 16), HasSubstr("is no whole number from 0 to 2^63 - 1"));
  EXPECT_THAT(read("[18446744073709551612]", 16),
              HasSubstr("is no whole number from 0 to 2^63 - 1"));
  EXPECT_THAT(read("[true]", 1), HasSubstr("is no whole number from 0 to 2^63 - 1"));
  EXPECT_THAT(refusal([&] { Checkpoint::read(folder_); }), HasSubstr("no plain file"));
  EXPECT_THAT(refusal([&] { Checkpoint::read(folder_ + "none"); }, ErrorCode::io),
              HasSubstr("cannot open \"" + folder_ + "none\""));
}

TEST_F(Checkpoints, OffsetsAreTwoWholeNumbersOfATensorsOwn) {
  const auto entry = [](const std::string& offsets) {
    return "{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":" + offsets + "}";
  };
  const auto read = [&](const std::string& header) {
    const auto file = forge(header, 16);
    return refusal([&] { Checkpoint::read(file); });
  };
  EXPECT_EQ(read("{\"w\":" + entry("[0,16]") + "}"), "no error");
  EXPECT_THAT(read("{\"w\":" + entry("[0.0,16]") + "}"),
              HasSubstr("is no whole number from 0 to 2^63 - 1"));
  EXPECT_THAT(read("{\"w\":" + entry("[0,1e300]") + "}"),
              HasSubstr("is no whole number from 0 to 2^63 - 1"));
  EXPECT_THAT(read("{\"w\":" + entry("[-16,0]") + "}"), HasSubstr("-16 is no whole number"));
  EXPECT_THAT(read("{\"w\":" + entry("[0,16,16]") + "}"),
              HasSubstr("\"w\" has 3 data_offsets, expected 2"));
  EXPECT_THAT(read("{\"w\":" + entry("[0,16]") + ",\"x\":" + entry("[0,16]") + "}"),
              HasSubstr("\"x\" lies where other tensors lie"));
  for (const char* header : {"null", "[]", "7"})
    EXPECT_THAT(read(header), HasSubstr("no JSON object")) << header;
}

TEST_F(Checkpoints, NamesThatTheLayoutCannotHoldAreRefused) {
  const auto write = [&](const std::string& name) {
    Checkpoint checkpoint;
    checkpoint.tensors[name] = Tensor(Shape{1}, DataType::f32);
    return refusal([&] { checkpoint.write(folder_ + "checkpoint"); }, ErrorCode::invalid_argument);
  };
  EXPECT_THAT(write("__metadata__"),
              HasSubstr("a tensor cannot be named \"__metadata__\", which is the place of words"));
  EXPECT_THAT(write("\xff"), HasSubstr("names and words must be UTF-8 ("));
  EXPECT_EQ(files(), 0u);
}

// Writes a second, larger checkpoint in a child whose files end at 100 KB.
int status_of_a_write_that_fails(const std::string& file, bool killed) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGXFSZ, killed ? SIG_DFL : SIG_IGN);
    try {
      filled(2, 100'000).write(file);
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::io ? 1 : 2);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(Checkpoints, AWriteThatFailsLeavesTheOldFileAndNoDraft) {
  const auto file = folder_ + "checkpoint";
  filled(1, 100'000).write(file);
  const int status = status_of_a_write_that_fails(file, false);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(Checkpoint::read(file).tensors.at("w").as<float>()[99'999], 1.0f);
  EXPECT_EQ(files(), 1u);
}

TEST_F(Checkpoints, APlaceThatIsAFolderIsNotTaken) {
  std::filesystem::create_directories(folder_ + "folder/inside");
  EXPECT_THAT(refusal([&] { filled(1, 10).write(folder_ + "folder"); }, ErrorCode::io),
              HasSubstr("cannot finish \"" + folder_ + "folder\""));
  EXPECT_EQ(files(), 1u);
}

TEST_F(Checkpoints, AWriterThatIsKilledLeavesTheOldFile) {
  const auto file = folder_ + "checkpoint";
  filled(1, 100'000).write(file);
  const int status = status_of_a_write_that_fails(file, true);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGXFSZ);
  EXPECT_EQ(Checkpoint::read(file).tensors.at("w").as<float>()[99'999], 1.0f);
  // The next one takes its place.
  filled(3, 10).write(file);
  EXPECT_EQ(Checkpoint::read(file).tensors.at("w").as<float>()[9], 3.0f);
}

}  // namespace
}  // namespace tutti::nn
