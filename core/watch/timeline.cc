#include "tutti/core/watch/timeline.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>

#include "tutti/base/error.h"

namespace tutti {

namespace {

constexpr size_t kMostEvents = 1'000'000;

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

// Ranks of several hosts share no steady clock; the wall clock, read once, aligns them as well as
// their hosts agree on the time.
double wall_offset_micros() {
  using Micros = std::chrono::duration<double, std::micro>;
  return Micros(std::chrono::system_clock::now().time_since_epoch()).count() -
         Micros(Clock::now().time_since_epoch()).count();
}

double micros(Clock::time_point when) {
  return std::chrono::duration<double, std::micro>(when.time_since_epoch()).count();
}

}  // namespace

void Timeline::start() {
  const std::lock_guard lock(mutex_);
  events_.clear();
  dropped_ = 0;
  on_ = true;
}

void Timeline::span(std::string_view row, std::string_view name, Clock::time_point begin,
                    Clock::time_point end, std::string_view detail) {
  if (!on_) return;
  const std::lock_guard lock(mutex_);
  if (events_.size() >= kMostEvents) {
    ++dropped_;
    return;
  }
  events_.push_back({std::string(row), std::string(name), std::string(detail), begin, end});
}

void Timeline::instant(std::string_view row, std::string_view name) {
  const auto now = Clock::now();
  span(row, name, now, now);
}

std::string Timeline::stop() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  const double offset = wall_offset_micros();
  std::string text = fmt::format(
      "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"args\":{{\"name\":\"rank {0}\"}}}}\n",
      rank_);
  if (dropped_ > 0)
    text += fmt::format(
        "{{\"ph\":\"i\",\"s\":\"p\",\"name\":\"{} later events dropped\",\"pid\":{},\"tid\":0,"
        "\"ts\":{:.3f}}}\n",
        dropped_, rank_, micros(Clock::now()) + offset);
  std::map<std::string, int> rows;
  for (const auto& event : events_) {
    const auto [row, is_new] = rows.try_emplace(event.row, static_cast<int>(rows.size()) + 1);
    if (is_new)
      text += fmt::format(
          "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}"
          "\n",
          rank_, row->second, quoted(event.row));
    const double begin = micros(event.begin) + offset;
    const double length = micros(event.end) - micros(event.begin);
    text +=
        fmt::format("{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}",
                    quoted(event.name), rank_, row->second, begin, length);
    if (!event.detail.empty())
      text += fmt::format(",\"args\":{{\"detail\":{}}}", quoted(event.detail));
    text += "}\n";
  }
  events_.clear();
  return text;
}

void write_timeline(const std::string& file, const std::vector<std::string>& ranks) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(file.c_str(), "w"),
                                                            &std::fclose);
  if (!out) throw system_error(fmt::format("cannot write the timeline \"{}\"", file), errno);
  std::fputs("[", out.get());
  const char* separator = "\n";
  for (const auto& events : ranks)
    for (size_t at = 0; at < events.size();) {
      const auto end = events.find('\n', at);
      std::fputs(separator, out.get());
      std::fwrite(events.data() + at, 1, end - at, out.get());
      separator = ",\n";
      at = end + 1;
    }
  if (std::fputs("\n]\n", out.get()) < 0 || std::fflush(out.get()) != 0)
    throw system_error(fmt::format("cannot write the timeline \"{}\"", file), errno);
}

}  // namespace tutti
