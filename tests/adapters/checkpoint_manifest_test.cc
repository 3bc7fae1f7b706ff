// Forged manifests of a checkpoint: whatever a manifest contains, the accepted values are
// consistent.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tutti/adapters/checkpoint/manifest.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

// Makes a manifest with a correct checksum. `body` must be JSON as the library writes it: no
// spaces, keys in order.
std::string sealed(const std::string& body) {
  return fmt::format("{{\"xxh3\":\"{:016x}\",\"checkpoint\":{}}}", hash_text(body), body);
}

std::string with(const std::string& tensors, const std::string& file = "a",
                 const std::string& step = "3") {
  return sealed(R"({"files":[{"bytes":100,"name":")" + file + R"("}],"step":)" + step +
                R"(,"tensors":)" + tensors + R"(,"version":1,"words":{}})");
}

std::string tensor(const std::string& shape, const std::string& parts,
                   const std::string& dtype = "F32") {
  return R"({"w":{"dtype":")" + dtype + R"(","parts":[)" + parts + R"(],"shape":)" + shape + "}}";
}

std::string part(int64_t begin, int64_t end, const std::string& file = "0",
                 const std::string& offset = "8",
                 const std::string& checksum = "0123456789abcdef") {
  return fmt::format(R"({{"begin":{},"end":{},"file":{},"offset":{},"xxh3":"{}"}})", begin, end,
                     file, offset, checksum);
}

void refused(const std::string& text, const std::string& manifest) {
  test::expect_error(ErrorCode::corrupt_data, text, [&] { Manifest::parse("here", manifest); });
}

TEST(CheckpointManifest, ComesBack) {
  Manifest manifest;
  manifest.step = 9;
  manifest.words["sampler"] = "\n\"x\"";
  manifest.files = {{"a", 100}, {"b", 200}};
  manifest.tensors["w"] = {Shape{5}, DataType::f64, {{{0, 2}, 0, 8, 1}, {{2, 5}, 1, 16, 2}}};
  manifest.tensors["none"] = {Shape{0, 3}, DataType::u8, {}};
  const auto text = manifest.to_text();
  EXPECT_EQ(Manifest::parse("here", text).to_text(), text);
}

TEST(CheckpointManifest, AnyOtherByteIsSeen) {
  Manifest manifest;
  manifest.words["sampler"] = "3 of 9";
  manifest.files = {{"a", 100}};
  manifest.tensors["w"] = {Shape{2}, DataType::f32, {{{0, 2}, 0, 8, 1}}};
  const auto text = manifest.to_text();
  for (size_t at = 0; at + 1 < text.size(); ++at) {
    auto damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    EXPECT_THROW(Manifest::parse("here", damaged), Error) << at << ": " << damaged;
  }
}

TEST(CheckpointManifest, PartsMakeUpWholeTensorsInsideTheirFiles) {
  EXPECT_EQ(Manifest::parse("here", with(tensor("[5]", part(0, 2) + "," + part(2, 5)))).step, 3);
  refused("\"w\" has a part of elements 3 to 5 where 2 should follow",
          with(tensor("[5]", part(0, 2) + "," + part(3, 5))));
  refused("where 0 should follow", with(tensor("[5]", part(0, 6))));
  refused("\"w\" has 2 of its 5 elements", with(tensor("[5]", part(0, 2))));
  refused("\"w\" lies in file 1 of 1", with(tensor("[5]", part(0, 5, "1"))));
  refused("\"w\" lies at 81 of the 100 bytes of a and has 20",
          with(tensor("[5]", part(0, 5, "0", "81"))));
  refused("\"w\" lies at 9223372036854775807 of the 100 bytes",
          with(tensor("[5]", part(0, 5, "0", "9223372036854775807"))));
  refused("\"w\" has dtype F31", with(tensor("[5]", part(0, 5), "F31")));
  refused("has more bytes than 64 bits count", with(tensor("[4611686018427387904]", "")));
  refused("more than 2^63 elements", with(tensor("[4611686018427387904,4]", "")));
}

TEST(CheckpointManifest, NumbersAndNamesAreWhatTheyShouldBe) {
  refused("1.5 is not a whole number from 0 to 2^63 - 1", with("{}", "a", "1.5"));
  refused("-1 is not a whole number from 0", with("{}", "a", "-1"));
  refused("9223372036854775808 is not a whole number", with("{}", "a", "9223372036854775808"));
  refused("\"../a\" is not the name of a file in it", with("{}", "../a"));
  refused("\"..\" is not the name of a file in it", with("{}", ".."));
  refused("\"\" is not the name of a file in it", with("{}", ""));
  refused("\"0x2\" is not a checksum", with(tensor("[5]", part(0, 5, "0", "8", "0x2"))));
  refused("its manifest cannot be read (", with("7"));
  refused("its manifest cannot be read (", "{");
  refused("its manifest is of version 2, this library reads 1", sealed(R"({"version":2})"));
  refused("its manifest has checksum ",
          R"({"checkpoint":{"version":1},"xxh3":"0000000000000000"})");
}

// A safetensors file without a manifest, as older versions and other programs write it.
TEST(CheckpointManifest, OfASingleFile) {
  const auto head_of = [](const std::string& header) {
    const uint64_t length = header.size();
    std::string head(sizeof length, '\0');
    std::memcpy(head.data(), &length, sizeof length);
    return head + header;
  };
  const auto refuses = [&](const std::string& text, const std::string& header, uint64_t data) {
    const auto head = head_of(header);
    test::expect_error(ErrorCode::corrupt_data, text,
                       [&] { Manifest::of_header("file", head, head.size() + data); });
  };
  const auto entry = [](const std::string& name, const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":"F32","shape":[4],"data_offsets":)" + offsets + "}";
  };
  const auto head = head_of("{" + entry("w", "[0,16]") + R"(,"__metadata__":{"epoch":"3"}})");
  const auto manifest = Manifest::of_header("file", head, head.size() + 16);
  EXPECT_EQ(manifest.words.at("epoch"), "3");
  EXPECT_EQ(manifest.tensors.at("w").parts.at(0).offset, head.size());
  refuses("\"w\" lies at 0 to 16 of 15 bytes and should have 16", "{" + entry("w", "[0,16]") + "}",
          15);
  refuses("\"w\" lies at 0 to 12 of 16 bytes and should have 16", "{" + entry("w", "[0,12]") + "}",
          16);
  refuses("\"x\" lies where other tensors lie",
          "{" + entry("w", "[0,16]") + "," + entry("x", "[0,16]") + "}", 16);
  refuses("its header cannot be read (", "{", 0);
  refuses("its header is not a JSON object", "[1]", 0);
  refuses("\"w\" has 3 data_offsets, expected 2", "{" + entry("w", "[0,8,16]") + "}", 16);
  test::expect_error(ErrorCode::corrupt_data, "7 bytes are too few",
                     [] { Manifest::header_bytes("file", "1234567", 7); });
  test::expect_error(ErrorCode::corrupt_data, "its header should have 255 bytes, 2 are there", [] {
    Manifest::header_bytes("file", std::string("\xff\0\0\0\0\0\0\0", 8), 10);
  });
}

}  // namespace
}  // namespace tutti
