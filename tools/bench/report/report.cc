#include "tools/bench/report/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::bench {

Report::File Report::open(const char* option, const std::string& path) {
  if (path.empty()) return nullptr;
  File file(path == "-" ? ::fdopen(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0), "a")
                        : std::fopen(path.c_str(), "ae"));
  if (!file)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} {}: cannot be written: {}", option, path, std::strerror(errno)));
  return file;
}

Report::Report(const Settings& settings, bool silent)
    : silent_(silent),
      table_(settings.json == "-" || settings.csv == "-" || settings.plot == "-" ? stderr
                                                                                 : stdout) {
  if (silent_) return;
  json_ = open("--json", settings.json);
  csv_ = open("--csv", settings.csv);
  plot_ = open("--plot", settings.plot);
  plot_is_file_ = settings.plot != "-";
}

void Report::print(const std::string& text) {
  if (silent_) return;
  std::fputs(text.c_str(), table_);
  std::fflush(table_);
}

void Report::add(const Record& record) {
  if (silent_) return;
  if (json_) {
    fmt::print(json_.get(), "{}\n", to_json(record));
    std::fflush(json_.get());
  }
  if (csv_) {
    // A file gets the heading only at its beginning. A pipe has no position, so it gets the heading
    // first.
    static_cast<void>(std::fseek(csv_.get(), 0, SEEK_END));
    const bool begins = csv_heading_due_ && std::ftell(csv_.get()) <= 0;
    csv_heading_due_ = false;
    if (begins) fmt::print(csv_.get(), "{}\n", csv_header());
    fmt::print(csv_.get(), "{}\n", to_csv(record));
    std::fflush(csv_.get());
  }
  if (!plot_ || record.bytes <= 0 || record.time_us <= 0) return;
  const auto label =
      fmt::format("{}, {}", record.way, record.in_place ? "in place" : "out of place");
  auto found = std::find_if(series_.begin(), series_.end(),
                            [&](const Series& series) { return series.label == label; });
  if (found == series_.end()) found = series_.insert(found, {label, {}});
  found->points.emplace_back(static_cast<double>(record.bytes), record.time_us);
}

void Report::draw(const std::string& title) {
  if (!plot_ || series_.empty()) return;
  // The picture replaces an older one. Standard output is not truncated, because it may hold other
  // output.
  if (plot_is_file_) static_cast<void>(::ftruncate(::fileno(plot_.get()), 0));
  std::fputs(draw_svg(title, series_).c_str(), plot_.get());
  std::fflush(plot_.get());
}

}  // namespace tutti::bench
