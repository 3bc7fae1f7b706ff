// A plain safetensors file instead of a checkpoint folder can be loaded. A file that contradicts
// itself is refused.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"

namespace tutti {
namespace {

class CheckpointFile : public testing::Test {
 protected:
  /// Writes a file of these bytes and returns its name.
  std::string put(const std::string& bytes) const {
    const auto file = scratch_.path() + "/file";
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  /// Writes a file with this header and `data` bytes of data; returns its name.
  std::string forge(const std::string& header, size_t data) const {
    const uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return put(bytes + header + std::string(data, '\1'));
  }
  /// Loads a vector "w" of four elements. The file may contain other tensors too.
  static LoadedCheckpoint load(const std::string& file) {
    LoadedCheckpoint loaded;
    test::run_threads(1, [&](Communicator& comm) {
      std::vector<float> w(4);
      loaded = CheckpointFolder(comm, file).load({{"w", w, {Shape{4}}}}, {.partly = true}).value();
    });
    return loaded;
  }
  static void refused(const std::string& text, const std::string& file) {
    test::run_threads(1, [&](Communicator& comm) {
      std::vector<float> w(4);
      test::expect_error(ErrorCode::corrupt_data, text, [&] {
        CheckpointFolder(comm, file).load({{"w", w, {Shape{4}}}}, {.partly = true});
      });
      EXPECT_EQ(w[0], 0);
    });
  }

 private:
  const test::ScratchFolder scratch_;
};

std::string entry(const std::string& shape, const std::string& offsets) {
  return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string of_w(const std::string& shape, const std::string& offsets) {
  return R"({"w":)" + entry(shape, offsets) + "}";
}

TEST_F(CheckpointFile, LoadsOnAnyNumberOfRanks) {
  std::vector<float> values(7);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1F * static_cast<float>(i);
  const auto file =
      put(safetensors_header({{"w", Shape{7}, DataType::f32, {0, 7}}}, {{"made", "elsewhere"}}) +
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  for (const int size : {1, 3})
    test::run_threads(size, [&](Communicator& comm) {
      const Placement placement{Shape{7}, Held::divided, comm.size(), comm.rank()};
      const auto here = placement.here();
      std::vector<float> whole(7), part(static_cast<size_t>(here.count()));
      const auto found = CheckpointFolder(comm, file).load({{"w", whole, {Shape{7}}}});
      ASSERT_TRUE(found);
      EXPECT_EQ(found->words.at("made"), "elsewhere");
      EXPECT_EQ(found->members, 1);
      EXPECT_EQ(whole, values);
      CheckpointFolder(comm, file).load({{"w", part, placement}});
      EXPECT_EQ(part, std::vector<float>(values.begin() + here.begin, values.begin() + here.end));
      // Saving into the file is refused.
      test::expect_error(ErrorCode::io, "cannot make \"" + file + "\"", [&] {
        CheckpointFolder(comm, file).save(1, {{"w", whole, {Shape{7}}}});
      });
    });
}

TEST_F(CheckpointFile, ThatIsCutOffIsRefused) {
  const auto header = safetensors_header({{"w", Shape{4}, DataType::f32, {0, 4}}});
  const auto bytes = header + std::string(16, '\1');
  load(put(bytes));
  refused("0 bytes are too few", put(""));
  refused("7 bytes are too few", put(bytes.substr(0, 7)));
  refused("its header should have", put(bytes.substr(0, 20)));
  refused("\"w\" lies at 0 to 16 of 15 bytes", put(bytes.substr(0, bytes.size() - 1)));
  refused("its header should have 18446744073709551615 bytes, 2 are there",
          put(std::string(8, '\xff') + "{}"));
}

// A gzip file begins with 1f 8b, and so may the header's length.
TEST_F(CheckpointFile, AHeaderOfAnyLengthIsNoGzip) {
  constexpr size_t kGzip = 0x8b1f;
  const std::string begin = R"({"w":)" + entry("[4]", "[0,16]") + R"(,"__metadata__":{"pad":")";
  const std::string pad(kGzip - begin.size() - 3, 'x');
  EXPECT_EQ(load(forge(begin + pad + "\"}}", 16)).words.at("pad"), pad);
}

TEST_F(CheckpointFile, ForgedHeadersAreCorruptData) {
  const auto shape = [&](const std::string& extents, const std::string& text, int end = 16) {
    refused(text, forge(of_w(extents, "[0," + std::to_string(end) + "]"), 16));
  };
  load(forge(of_w("[4]", "[0,16]"), 16));
  shape("[-4]", "is not a whole number");
  shape("[-2,-2]", "is not a whole number");
  // 2^62 + 4 elements have, in 64 bits, as many bytes as four.
  shape("[4611686018427387908]", "more bytes than 64 bits");
  shape("[4611686018427387904,4]", "more than 2^63 elements");
  shape("[5]", "\"w\" lies at 0 to 20 of 16 bytes and should have 20", 20);
  shape("[5]", "\"w\" lies at 0 to 16 of 16 bytes and should have 20");
  shape("\"four\"", "\"four\" is not a whole number");
  for (const char* extents : {"[4.5]", "[1e99]", "[18446744073709551612]", "[true]"})
    shape(extents, "is not a whole number from 0 to 2^63 - 1");
}

TEST_F(CheckpointFile, OffsetsAreTwoWholeNumbersOfATensorsOwn) {
  const auto offsets = [&](const std::string& numbers, const std::string& text) {
    refused(text, forge(of_w("[4]", numbers), 16));
  };
  offsets("[0.0,16]", "is not a whole number from 0 to 2^63 - 1");
  offsets("[0,1e300]", "is not a whole number from 0 to 2^63 - 1");
  offsets("[-16,0]", "-16 is not a whole number");
  offsets("[0,16,16]", "\"w\" has 3 data_offsets, expected 2");
  const auto w = entry("[4]", "[0,16]");
  refused("\"x\" lies where other tensors lie", forge(R"({"w":)" + w + R"(,"x":)" + w + "}", 16));
  for (const char* header : {"null", "[]", "7"}) refused("not a JSON object", forge(header, 16));
}

}  // namespace
}  // namespace tutti
