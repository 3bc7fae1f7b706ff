// Manifests of checkpoints, and headers of safetensors files.

#include "tutti/adapters/checkpoint/manifest.h"

#include <cstring>

#include "tests/fuzz/harness.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::fuzz {
namespace {

void require_whole(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.tensors) {
    int64_t at = 0;
    for (const auto& part : tensor.parts) {
      require(part.range.begin == at && part.range.end >= at, "parts are not in order");
      at = part.range.end;
      const auto bytes = static_cast<uint64_t>(part.range.count() * size_of(tensor.dtype));
      const auto& file = manifest.files.at(static_cast<size_t>(part.file));
      require(part.offset <= file.bytes && bytes <= file.bytes - part.offset,
              "a part lies outside of its file");
    }
    require(at == tensor.shape.count(), "parts do not make up their tensor");
  }
}

// The input is only the body: with a checksum over it, nearly every mutation would be refused.
bool parse_manifest(std::string_view input) {
  if (input.size() < 8 || input[0] != 'm') {
    const auto bytes = Manifest::header_bytes("file", input, input.size());
    require_whole(Manifest::of_header("file", input.substr(0, bytes), input.size()));
    return true;
  }
  const std::string body(input.substr(1));
  const auto text =
      fmt::format("{{\"xxh3\":\"{:016x}\",\"checkpoint\":{}}}", hash_text(body), body);
  const auto manifest = Manifest::parse("folder", text);
  require_whole(manifest);
  require(Manifest::parse("folder", manifest.to_text()).to_text() == manifest.to_text(),
          "a manifest is another one when it is written and read");
  return true;
}

std::vector<std::string> seeds_of_manifest() {
  Manifest manifest;
  manifest.step = 12;
  manifest.words = {{"sampler", "3"}};
  manifest.files = {{"a", 100}, {"b", 300}};
  manifest.tensors["w"] = {Shape{5, 2}, DataType::f64, {{{0, 4}, 0, 8, 1}, {{4, 10}, 1, 16, 2}}};
  manifest.tensors["none"] = {Shape{0}, DataType::i8, {}};
  const auto text = manifest.to_text();
  const std::string key = "\"checkpoint\":";
  const auto begin = text.find(key) + key.size();
  const auto body = "m" + text.substr(begin, text.rfind('}') - begin);
  const auto header = safetensors_header(
      {{"w", Shape{4}, DataType::f32, {0, 4}}, {"v", Shape{9}, DataType::u8, {2, 5}}});
  return {body, header + std::string(19, 'x'), safetensors_header({})};
}

const Registered registered_manifest({.name = "manifest",
                                      .parse = parse_manifest,
                                      .seeds = seeds_of_manifest,
                                      .most_bytes_per_byte = 256});

}  // namespace
}  // namespace tutti::fuzz
