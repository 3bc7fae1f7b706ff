#include "tutti/core/watch/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr size_t kMostEvents = 1'000'000;

int64_t nanoseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// Returns the nanoseconds to add to the steady clock to get the wall clock. Ranks on several hosts
// have no common steady clock. The wall clock aligns their events as well as the hosts' clocks
// agree.
int64_t wall_offset() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() -
         nanoseconds(Clock::now().time_since_epoch());
}

// Returns microseconds, the unit of the format, with three decimals.
std::string micros(int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

/// Assigns overlapping spans of one row to several lanes (rows of the drawing), as few as possible.
/// Spans of one lane overlap only if they nest. Spans must be passed in order of their beginnings;
/// among equal beginnings, the longer one first.
class Lanes {
 public:
  size_t lane_of(Clock::time_point begin, Clock::time_point end, bool may_nest) {
    for (size_t lane = 0;; ++lane) {
      if (lane == open_.size()) open_.emplace_back();
      auto& open = open_[lane];
      while (!open.empty() && open.back().end <= begin) open.pop_back();
      if (!open.empty() && !(may_nest && open.back().may_nest && end <= open.back().end)) continue;
      open.push_back({end, may_nest});
      return lane;
    }
  }

 private:
  struct Open {
    Clock::time_point end;
    bool may_nest;
  };
  std::vector<std::vector<Open>> open_;  // per lane: spans that have not ended, outer first
};

}  // namespace

std::shared_ptr<const DeviceSpans> Timeline::device_spans(std::string name) {
  if (!on()) return nullptr;
  return std::make_shared<const DeviceSpans>(
      [timeline = weak_from_this(), name = std::move(name)](
          std::string_view part, Clock::time_point begin, Clock::time_point end) {
        if (const auto there = timeline.lock())
          there->span(fmt::format("device: {}", part), name, begin, end);
      });
}

void Timeline::start() {
  const std::lock_guard lock(mutex_);
  events_.clear();
  dropped_ = 0;
  on_ = true;
}

void Timeline::record(Event event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() >= kMostEvents)
    ++dropped_;
  else
    events_.push_back(std::move(event));
}

void Timeline::span(std::string_view row, std::string_view name, Clock::time_point begin,
                    Clock::time_point end, std::string_view detail) {
  if (!on_) return;
  record({std::string(row), std::string(name), std::string(detail), begin, std::max(begin, end),
          false});
}

void Timeline::nested_span(std::string_view row, std::string_view name, Clock::time_point begin,
                           Clock::time_point end) {
  if (on_) record({std::string(row), std::string(name), {}, begin, std::max(begin, end), true});
}

void Timeline::instant(std::string_view row, std::string_view name, Clock::time_point when) {
  span(row, name, when, when);
}

// Returns one line per event. It has the event's time in nanoseconds since 1970 (or nothing), a
// tab, and the rest of the event without its opening brace.
std::string Timeline::stop() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  const int64_t offset = wall_offset();
  const auto when = [&](Clock::time_point time) {
    return nanoseconds(time.time_since_epoch()) + offset;
  };
  std::string text = fmt::format(
      "\t\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"args\":{{\"name\":\"rank {0}\"}}}}\n",
      rank_);
  if (dropped_ > 0)
    text += fmt::format(
        "{}\t\"ph\":\"i\",\"s\":\"p\",\"name\":\"{} later events "
        "dropped\",\"pid\":{},\"tid\":0}}\n",
        when(Clock::now()), dropped_, rank_);
  std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::map<std::string, Lanes> lanes;
  std::map<std::pair<std::string, size_t>, int> rows;
  for (const auto& event : events_) {
    const size_t lane = lanes[event.row].lane_of(event.begin, event.end, event.may_nest);
    const auto [row, is_new] =
        rows.try_emplace({event.row, lane}, static_cast<int>(rows.size()) + 1);
    if (is_new)
      text += fmt::format(
          "\t\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}"
          "\n",
          rank_, row->second,
          json_string(lane == 0 ? event.row : fmt::format("{} {}", event.row, lane + 1)));
    text += fmt::format("{}\t\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"dur\":{}",
                        when(event.begin), json_string(event.name), rank_, row->second,
                        micros(nanoseconds(event.end - event.begin)));
    if (!event.detail.empty())
      text += fmt::format(",\"args\":{{\"detail\":{}}}", json_string(event.detail));
    text += "}\n";
  }
  events_.clear();
  return text;
}

namespace {

struct Line {
  std::optional<int64_t> when;
  std::string_view event;
};

std::vector<Line> lines_of(const std::vector<std::string>& ranks) {
  std::vector<Line> lines;
  for (const auto& events : ranks)
    for (std::string_view rest = events; !rest.empty();) {
      const auto tab = std::min(rest.find('\t'), rest.size() - 1);
      const auto end = std::min(rest.find('\n'), rest.size());
      Line line;
      int64_t when = 0;
      if (std::from_chars(rest.data(), rest.data() + tab, when).ec == std::errc()) line.when = when;
      line.event = rest.substr(tab + 1, end - tab - 1);
      lines.push_back(line);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  return lines;
}

}  // namespace

// Times are written relative to the first event. Readers parse them as doubles, which would round
// times since 1970 to a quarter of a microsecond.
void write_timeline(const std::string& file, const std::vector<std::string>& ranks) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(file.c_str(), "w"),
                                                            &std::fclose);
  if (!out) throw system_error(fmt::format("cannot write the timeline \"{}\"", file), errno);
  const auto lines = lines_of(ranks);
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& line : lines) first = std::min(first, line.when.value_or(first));
  std::fputs("[", out.get());
  const char* separator = "\n{";
  for (const auto& line : lines) {
    std::fputs(separator, out.get());
    if (line.when) fmt::print(out.get(), "\"ts\":{},", micros(*line.when - first));
    std::fwrite(line.event.data(), 1, line.event.size(), out.get());
    separator = ",\n{";
  }
  if (std::fputs("\n]\n", out.get()) < 0 || std::fflush(out.get()) != 0)
    throw system_error(fmt::format("cannot write the timeline \"{}\"", file), errno);
}

}  // namespace tutti
