#include "tutti/adapters/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

using ManifestJson = nlohmann::json;

constexpr int64_t kManifestVersion = 1;
constexpr std::string_view kSafetensorsTypes[kDataTypeCount] = {"F64", "F32", "F16",  "BF16", "I8",
                                                                "I16", "I32", "I64",  "U8",   "U16",
                                                                "U32", "U64", "BOOL", "U8"};

Error bad_checkpoint(const std::string& where, const std::string& what) {
  return {ErrorCode::corrupt_data, fmt::format("checkpoint \"{}\": {}", where, what)};
}

// The JSON library would silently convert fractions and numbers such as 1e99 to integers.
int64_t whole_number(const std::string& where, const ManifestJson& value) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits =
      value.is_number_integer() &&
      (value.is_number_unsigned() ? value.get<uint64_t>() <= kMost : value.get<int64_t>() >= 0);
  if (!fits)
    throw bad_checkpoint(
        where, fmt::format("{:.60} is not a whole number from 0 to 2^63 - 1", value.dump()));
  return value.get<int64_t>();
}

std::string as_text(const ManifestJson& json) {
  try {
    return json.dump();
  } catch (const ManifestJson::exception& error) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a checkpoint's names and words must be UTF-8 ({})", error.what()));
  }
}

CheckpointEntry entry_of(const std::string& where, const std::string& name,
                         const ManifestJson& json) {
  CheckpointEntry entry;
  const auto type = json.at("dtype").get<std::string>();
  const auto* found = std::find(std::begin(kSafetensorsTypes), std::end(kSafetensorsTypes), type);
  if (found == std::end(kSafetensorsTypes))
    throw bad_checkpoint(where, fmt::format("\"{}\" has dtype {:.20}", name, type));
  entry.dtype = static_cast<DataType>(found - std::begin(kSafetensorsTypes));
  std::vector<int64_t> extents;
  for (const auto& extent : json.at("shape")) extents.push_back(whole_number(where, extent));
  int64_t bytes = 0;
  try {
    entry.shape = Shape(extents);
  } catch (const Error& error) {
    throw bad_checkpoint(where, fmt::format("\"{}\": {}", name, error.what()));
  }
  if (__builtin_mul_overflow(entry.shape.count(), size_of(entry.dtype), &bytes))
    throw bad_checkpoint(where, fmt::format("\"{}\": {}{} has more bytes than 64 bits count", name,
                                            to_string(entry.dtype), entry.shape.to_string()));
  return entry;
}

// Throws unless the part is inside its file. The numbers come from a file and may be wrong.
void check_place(const std::string& where, const std::string& name, const CheckpointEntry& entry,
                 const CheckpointPart& part, const Manifest::File& file) {
  const auto bytes = static_cast<uint64_t>(part.range.count() * size_of(entry.dtype));
  if (part.offset > file.bytes || bytes > file.bytes - part.offset)
    throw bad_checkpoint(where, fmt::format("\"{}\" lies at {} of the {} bytes of {} and has {}",
                                            name, part.offset, file.bytes, file.name, bytes));
}

void check_parts(const std::string& where, const std::string& name, const CheckpointEntry& entry,
                 const std::vector<Manifest::File>& files) {
  int64_t at = 0;
  for (const auto& part : entry.parts) {
    if (part.range.begin != at || part.range.end < at || part.range.end > entry.shape.count())
      throw bad_checkpoint(
          where, fmt::format("\"{}\" has a part of elements {} to {} where {} should follow", name,
                             part.range.begin, part.range.end, at));
    at = part.range.end;
    check_place(where, name, entry, part, files[static_cast<size_t>(part.file)]);
  }
  if (at != entry.shape.count())
    throw bad_checkpoint(
        where, fmt::format("\"{}\" has {} of its {} elements", name, at, entry.shape.count()));
}

void read_files(const std::string& where, const ManifestJson& list, Manifest& manifest) {
  for (const auto& file : list) {
    auto name = file.at("name").get<std::string>();
    // A manifest must not refer to files outside of its own folder.
    if (name.empty() || name.find('/') != name.npos || name.front() == '.' ||
        name.find('\0') != name.npos)
      throw bad_checkpoint(where, fmt::format("\"{:.60}\" is not the name of a file in it", name));
    manifest.files.push_back(
        {std::move(name), static_cast<uint64_t>(whole_number(where, file.at("bytes")))});
  }
}

uint64_t parse_checksum(const std::string& where, const std::string& digits) {
  uint64_t value = 0;
  bool is_hex = digits.size() == 16;
  for (const char digit : digits) {
    const auto place = std::string_view("0123456789abcdef").find(digit);
    is_hex = is_hex && place != std::string_view::npos;
    value = value << 4 | (is_hex ? place : 0);
  }
  if (!is_hex) throw bad_checkpoint(where, fmt::format("\"{:.30}\" is not a checksum", digits));
  return value;
}

}  // namespace

std::string_view safetensors_type(DataType dtype) {
  return kSafetensorsTypes[static_cast<int>(dtype)];
}

std::string safetensors_header(const std::vector<FilePart>& parts,
                               std::map<std::string, std::string> words) {
  auto header = ManifestJson::object();
  uint64_t offset = 0;
  for (const auto& part : parts) {
    const auto bytes = static_cast<uint64_t>(part.range.count() * size_of(part.dtype));
    const auto extents = part.shape.extents();
    const bool is_whole = part.range.count() == part.shape.count();
    header[part.name] = {{"dtype", safetensors_type(part.dtype)},
                         {"shape", is_whole ? std::vector<int64_t>(extents.begin(), extents.end())
                                            : std::vector<int64_t>{part.range.count()}},
                         {"data_offsets", {offset, offset + bytes}}};
    if (!is_whole)
      words[part.name] = fmt::format("elements {} to {} of {}", part.range.begin, part.range.end,
                                     part.shape.to_string());
    offset += bytes;
  }
  if (!words.empty()) header[kMetadataName] = words;
  auto text = as_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // aligns the elements to 8 bytes
  const uint64_t length = text.size();
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head + text;
}

std::string Manifest::to_text() const {
  auto files_json = ManifestJson::array();
  for (const auto& file : files) files_json.push_back({{"name", file.name}, {"bytes", file.bytes}});
  auto tensors_json = ManifestJson::object();
  for (const auto& [name, entry] : tensors) {
    auto parts = ManifestJson::array();
    for (const auto& part : entry.parts)
      parts.push_back({{"begin", part.range.begin},
                       {"end", part.range.end},
                       {"file", part.file},
                       {"offset", part.offset},
                       {"xxh3", fmt::format("{:016x}", part.checksum.value_or(0))}});
    const auto extents = entry.shape.extents();
    tensors_json[name] = {{"dtype", safetensors_type(entry.dtype)},
                          {"shape", std::vector<int64_t>(extents.begin(), extents.end())},
                          {"parts", std::move(parts)}};
  }
  const ManifestJson body = {{"format", "tutti checkpoint"},
                             {"version", kManifestVersion},
                             {"step", step},
                             {"members", files.size()},
                             {"words", words},
                             {"files", std::move(files_json)},
                             {"tensors", std::move(tensors_json)}};
  const auto text = as_text(body);
  return fmt::format("{{\"xxh3\":\"{:016x}\",\"checkpoint\":{}}}\n", hash_text(text), text);
}

Manifest Manifest::parse(const std::string& where, std::string_view text) {
  Manifest manifest;
  try {
    const auto json = ManifestJson::parse(text);
    const auto& body = json.at("checkpoint");
    if (const auto version = whole_number(where, body.at("version")); version != kManifestVersion)
      throw bad_checkpoint(where, fmt::format("its manifest is of version {}, this library reads "
                                              "{}",
                                              version, kManifestVersion));
    const auto expected = parse_checksum(where, json.at("xxh3").get<std::string>());
    if (const auto got = hash_text(body.dump()); got != expected)
      throw bad_checkpoint(
          where, fmt::format("its manifest has checksum {:016x}, expected {:016x}", got, expected));
    manifest.step = whole_number(where, body.at("step"));
    manifest.words = body.at("words").get<std::map<std::string, std::string>>();
    read_files(where, body.at("files"), manifest);
    for (const auto& [name, tensor] : body.at("tensors").items()) {
      auto entry = entry_of(where, name, tensor);
      for (const auto& part : tensor.at("parts")) {
        const auto number = [&](const char* field) { return whole_number(where, part.at(field)); };
        const int64_t file = number("file");
        if (file >= static_cast<int64_t>(manifest.files.size()))
          throw bad_checkpoint(where, fmt::format("\"{}\" lies in file {} of {}", name, file,
                                                  manifest.files.size()));
        entry.parts.push_back({{number("begin"), number("end")},
                               static_cast<int>(file),
                               static_cast<uint64_t>(number("offset")),
                               parse_checksum(where, part.at("xxh3").get<std::string>())});
      }
      check_parts(where, name, entry, manifest.files);
      manifest.tensors.emplace(name, std::move(entry));
    }
  } catch (const ManifestJson::exception& error) {
    throw bad_checkpoint(where, fmt::format("its manifest cannot be read ({})", error.what()));
  }
  return manifest;
}

uint64_t Manifest::header_bytes(const std::string& where, std::string_view first,
                                uint64_t file_bytes) {
  uint64_t length = 0;
  if (first.size() < sizeof length || file_bytes < sizeof length)
    throw bad_checkpoint(where, fmt::format("{} bytes are too few", file_bytes));
  std::memcpy(&length, first.data(), sizeof length);
  if (length > file_bytes - sizeof length)
    throw bad_checkpoint(where, fmt::format("its header should have {} bytes, {} are there", length,
                                            file_bytes - sizeof length));
  return sizeof length + length;
}

Manifest Manifest::of_header(const std::string& where, std::string_view head, uint64_t file_bytes) {
  Manifest manifest;
  manifest.files.push_back({where, file_bytes});
  try {
    const auto header = ManifestJson::parse(head.substr(sizeof(uint64_t)));
    if (!header.is_object()) throw bad_checkpoint(where, "its header is not a JSON object");
    uint64_t taken = head.size();
    for (const auto& [name, tensor] : header.items()) {
      if (name == kMetadataName) {
        manifest.words = tensor.get<std::map<std::string, std::string>>();
        continue;
      }
      auto entry = entry_of(where, name, tensor);
      const auto& offsets = tensor.at("data_offsets");
      if (offsets.size() != 2)
        throw bad_checkpoint(
            where, fmt::format("\"{}\" has {} data_offsets, expected 2", name, offsets.size()));
      const auto begin = static_cast<uint64_t>(whole_number(where, offsets.at(0)));
      const auto end = static_cast<uint64_t>(whole_number(where, offsets.at(1)));
      const auto bytes = static_cast<uint64_t>(entry.shape.count() * size_of(entry.dtype));
      if (begin > end || end - begin != bytes || end > file_bytes - head.size())
        throw bad_checkpoint(
            where, fmt::format("\"{}\" lies at {} to {} of {} bytes and should have {}", name,
                               begin, end, file_bytes - head.size(), bytes));
      taken += bytes;
      if (taken > file_bytes)
        throw bad_checkpoint(where, fmt::format("\"{}\" lies where other tensors lie", name));
      entry.parts.push_back({{0, entry.shape.count()}, 0, head.size() + begin, std::nullopt});
      manifest.tensors.emplace(name, std::move(entry));
    }
  } catch (const ManifestJson::exception& error) {
    throw bad_checkpoint(where, fmt::format("its header cannot be read ({})", error.what()));
  }
  return manifest;
}

}  // namespace tutti
