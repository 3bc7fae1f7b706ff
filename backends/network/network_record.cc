#include "tutti/backends/network/network_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/base/temporary_file.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

using Lines = std::vector<std::pair<std::string, NetworkFigures>>;

constexpr size_t kMostBytes = 1 << 16;

std::optional<LinkFigures> decode_link(std::string_view text) {
  const auto comma = text.find(',');
  if (comma == text.npos) return {};
  const auto latency = parse_number(text.substr(0, comma), 0.001, 1e8);
  const auto bandwidth = parse_number(text.substr(comma + 1), 1e-6, 1e8);
  if (!latency || !bandwidth) return {};
  return LinkFigures{*latency, *bandwidth};
}

Error failure(const std::string& file, std::string_view what, int error = errno) {
  return {ErrorCode::io, fmt::format("the file of measured networks {} {} ({})", file, what,
                                     std::strerror(error))};
}

std::string read_file(const std::string& file) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "re"),
                                                         &std::fclose);
  if (!stream) {
    if (errno == ENOENT) return {};
    throw failure(file, "cannot be read");
  }
  std::string text(kMostBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stream.get()));
  if (std::ferror(stream.get()) != 0) throw failure(file, "cannot be read");
  return text;
}

Lines read_lines(const std::string& file) {
  const auto text = read_file(file);
  Lines lines;
  if (text.empty()) return lines;
  const auto damaged = [&](size_t line) {
    return Error(ErrorCode::corrupt_data,
                 fmt::format("the file of measured networks {} is damaged at line {}", file, line));
  };
  if (text.size() > kMostBytes || text.back() != '\n') throw damaged(1);
  for (const auto& line : split_text(std::string_view(text).substr(0, text.size() - 1), '\n')) {
    const auto space = line.find(' ');
    const auto figures = space == line.npos
                             ? std::nullopt
                             : decode_figures(std::string_view(line).substr(space + 1));
    if (!figures) throw damaged(lines.size() + 1);
    lines.emplace_back(line.substr(0, space), *figures);
  }
  return lines;
}

void write_all(int fd, std::string_view text, const std::string& file) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) throw failure(file, "cannot be written");
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string encode(const NetworkFigures& figures) {
  const auto link = [](const LinkFigures& one) {
    return fmt::format("{:.6g},{:.6g}", one.latency_micros, one.bytes_per_micro);
  };
  return fmt::format("between={}{}", link(figures.between),
                     figures.within ? " within=" + link(*figures.within) : "");
}

std::optional<NetworkFigures> decode_figures(std::string_view text) {
  constexpr std::string_view kBetween = "between=", kWithin = "within=";
  const auto words = split_text(text, ' ');
  if (words.empty() || words.size() > 2 || !words[0].starts_with(kBetween)) return {};
  const auto between = decode_link(std::string_view(words[0]).substr(kBetween.size()));
  if (!between) return {};
  NetworkFigures figures{*between, {}};
  if (words.size() == 1) return figures;
  if (!words[1].starts_with(kWithin)) return {};
  figures.within = decode_link(std::string_view(words[1]).substr(kWithin.size()));
  if (!figures.within) return {};
  return figures;
}

std::optional<NetworkFigures> NetworkRecord::find(const std::string& key) const {
  for (auto& [name, figures] : read_lines(file_))
    if (name == key) return figures;
  return {};
}

void NetworkRecord::save(const std::string& key, const NetworkFigures& figures) const {
  Lines lines;
  try {
    lines = read_lines(file_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt_data) throw;
  }
  std::erase_if(lines, [&](const auto& line) { return line.first == key; });
  lines.emplace_back(key, figures);
  if (lines.size() > kMostLines)
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kMostLines));
  std::string text;
  for (const auto& [name, saved] : lines) text += fmt::format("{} {}\n", name, encode(saved));

  const auto folder = std::filesystem::path(file_).parent_path();
  std::error_code status;
  std::filesystem::create_directories(folder, status);
  const auto [temporary, descriptor, refused] =
      make_temporary_file(AT_FDCWD, file_ + ".", "", 0600);
  if (!descriptor) throw failure(file_, "cannot be written", refused);
  try {
    write_all(descriptor.get(), text, file_);
    if (::rename(temporary.c_str(), file_.c_str()) != 0) throw failure(file_, "cannot be written");
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace tutti
