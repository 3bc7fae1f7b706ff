#include "tutti/core/watch/timeline.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"
#include "tutti/core/communicator.h"

// Reads the timeline as a viewer of Chrome's format does: parsed as JSON, row by row.

namespace tutti {
namespace {

using nlohmann::json;
using std::chrono::microseconds;

class TimelineFile : public testing::Test {
 protected:
  ~TimelineFile() override { std::filesystem::remove(path_); }
  json read() const {
    std::ifstream stream(path_);
    return json::parse(stream);
  }
  json write(const std::vector<std::string>& ranks) const {
    write_timeline(path_, ranks);
    return read();
  }

  const std::string path_ = fmt::format("{}tutti_timeline_{}_{}.json", testing::TempDir(),
                                        ::getpid(), reinterpret_cast<uintptr_t>(this));
};

struct Slice {
  int64_t begin, end;  // ns
  std::string name;
};
using Rows = std::map<std::pair<int, int>, std::vector<Slice>>;  // by rank and row, ordered by time

Rows rows_of(const json& trace) {
  Rows rows;
  for (const auto& event : trace) {
    if (event.at("ph") != "X") continue;
    const auto begin = std::llround(event.at("ts").get<double>() * 1000);
    const auto length = std::llround(event.at("dur").get<double>() * 1000);
    rows[{event.at("pid").get<int>(), event.at("tid").get<int>()}].push_back(
        {begin, begin + length, event.at("name").get<std::string>()});
  }
  for (auto& [row, slices] : rows)
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  return rows;
}

std::map<std::string, int> row_names(const json& trace, int rank) {
  std::map<std::string, int> names;
  for (const auto& event : trace)
    if (event.at("ph") == "M" && event.at("name") == "thread_name" && event.at("pid") == rank)
      names[event.at("args").at("name").get<std::string>()] = event.at("tid").get<int>();
  return names;
}

// The format requires that of two slices of one row, either one ends before the other begins or one
// contains the other.
void expect_rows_in_order(const Rows& rows) {
  for (const auto& [row, slices] : rows) {
    std::vector<Slice> open;
    for (const auto& slice : slices) {
      while (!open.empty() && open.back().end <= slice.begin) open.pop_back();
      EXPECT_TRUE(open.empty() || slice.end <= open.back().end)
          << "rank " << row.first << " row " << row.second << ": " << slice.name << " at "
          << slice.begin << "-" << slice.end << " overlaps " << open.back().name << " until "
          << open.back().end;
      open.push_back(slice);
    }
  }
}

TEST_F(TimelineFile, NamesOfAnyKindAreReadBackAsTheyWere) {
  Timeline timeline(3);
  timeline.start();
  const auto now = Clock::now();
  const std::vector<std::string> names = {
      "C:\\data\\new", "say \"ah\"", "a\\", "tab\tand\nline", "gr\u00fc\u00df \u4e16 \U0001f600",
      "\x7f"};
  for (const auto& name : names) timeline.span(name, name, now, now + microseconds(1), name);
  timeline.span("bytes", "a\xff\xc0\x80z", now, now + microseconds(1));
  timeline.span("nul", std::string_view("a\0b", 3), now, now + microseconds(1));
  const auto trace = write({timeline.stop()});
  std::set<std::string> read, details;
  for (const auto& event : trace) {
    if (event.at("ph") != "X") continue;
    read.insert(event.at("name").get<std::string>());
    if (event.contains("args")) details.insert(event.at("args").at("detail").get<std::string>());
  }
  EXPECT_EQ(details, std::set<std::string>(names.begin(), names.end()));
  for (const auto& name : names) {
    EXPECT_TRUE(read.contains(name)) << name;
    EXPECT_TRUE(row_names(trace, 3).contains(name)) << name;
  }
  EXPECT_TRUE(read.contains("a\ufffd\ufffd\ufffdz"));
  EXPECT_TRUE(read.contains(std::string("a\0b", 3)));
}

TEST_F(TimelineFile, WhatIsUnderWayTogetherHasRowsOfItsOwn) {
  Timeline timeline(0);
  timeline.start();
  const auto zero = Clock::now();
  const auto span = [&](const char* name, int begin, int end) {
    timeline.span("negotiated", name, zero + microseconds(begin), zero + microseconds(end));
  };
  span("c", 30, 40);  // spans are recorded in the order of their ends
  span("a", 0, 50);
  span("b", 20, 60);
  span("d", 60, 70);
  const auto nested = [&](const char* name, int begin, int end) {
    timeline.nested_span("trainer", name, zero + microseconds(begin), zero + microseconds(end));
  };
  nested("forward", 1, 10);
  nested("step", 1, 50);
  nested("another thread's", 5, 55);
  const auto trace = write({timeline.stop()});
  const auto rows = rows_of(trace);
  expect_rows_in_order(rows);
  const auto names = row_names(trace, 0);
  const auto on = [&](const std::string& row) {
    std::string text;
    for (const auto& slice : rows.at({0, names.at(row)})) text += slice.name + ' ';
    return text;
  };
  // "a" contains "c", but "c" is not a part of "a", so it has its own row.
  EXPECT_EQ(on("negotiated"), "a d ");
  EXPECT_EQ(on("negotiated 2"), "b ");
  EXPECT_EQ(on("negotiated 3"), "c ");
  EXPECT_EQ(on("trainer"), "step forward ");
  EXPECT_EQ(on("trainer 2"), "another thread's ");
}

// A caller may know only the time of its step, and give it as the end of a span that began later.
TEST_F(TimelineFile, NothingEndsBeforeItBegins) {
  Timeline timeline(0);
  timeline.start();
  const auto zero = Clock::now();
  timeline.span("row", "first", zero, zero + microseconds(1));
  timeline.span("row", "early end", zero + microseconds(5), zero + microseconds(2));
  timeline.instant("row", "moment", zero + microseconds(7));
  const auto rows = rows_of(write({timeline.stop()}));
  ASSERT_EQ(rows.size(), 1u);
  const auto& slices = rows.begin()->second;
  ASSERT_EQ(slices.size(), 3u);
  for (const auto& [slice, when] : {std::pair(slices[1], 5000), std::pair(slices[2], 7000)}) {
    EXPECT_EQ(slice.begin, when) << slice.name;
    EXPECT_EQ(slice.end, when) << slice.name;
  }
}

// In a double, the times since 1970 have steps of a quarter of a microsecond.
TEST_F(TimelineFile, TimesAreExactToTheNanosecond) {
  Timeline timeline(0);
  timeline.start();
  const auto zero = Clock::now();
  constexpr int kSpans = 1000;
  for (int i = 0; i < kSpans; ++i)
    timeline.span("row", "x", zero + std::chrono::nanoseconds(7 * i),
                  zero + std::chrono::nanoseconds(7 * i + 7));
  const auto rows = rows_of(write({timeline.stop()}));
  ASSERT_EQ(rows.size(), 1u);
  const auto& slices = rows.begin()->second;
  ASSERT_EQ(slices.size(), size_t{kSpans});
  for (int i = 0; i < kSpans; ++i) {
    ASSERT_EQ(slices[static_cast<size_t>(i)].begin, 7 * i);
    ASSERT_EQ(slices[static_cast<size_t>(i)].end, 7 * i + 7);
  }
}

TEST_F(TimelineFile, WhatIsDroppedIsCountedAnewFromEachStart) {
  Timeline timeline(0);
  timeline.start();
  const auto now = Clock::now();
  for (int i = 0; i < 1'000'003; ++i) timeline.span("row", "x", now, now);
  if (!test::kIsSlow) {
    EXPECT_NE(timeline.stop().find("\"3 later events dropped\""), std::string::npos);
  }
  timeline.start();
  timeline.span("row", "x", now, now);
  EXPECT_EQ(timeline.stop().find("dropped"), std::string::npos);
}

TEST_F(TimelineFile, BucketsOfTwoRanksDoNotOverlapOnARow) {
  test::run_threads(
      2,
      [&](Communicator& comm) {
        comm.start_timeline(path_);
        std::vector<std::vector<float>> tensors(24, std::vector<float>(20'000));
        std::vector<float> sent(1000);
        for (int step = 0; step < 12; ++step) {
          const auto begin = Clock::now();
          std::vector<Work> works;
          for (size_t i = 0; i < tensors.size(); ++i)
            works.push_back(comm.allreduce(fmt::format("layer\\{}", i), tensors[i]));
          works.push_back(comm.broadcast("sent", sent, 1));
          for (auto& work : works) work.wait();
          comm.timeline_span("step", begin, Clock::now());
        }
        comm.stop_timeline();
      },
      [](Options& options) { options.fusion_bytes = 100'000; });
  const auto trace = read();
  const auto rows = rows_of(trace);
  expect_rows_in_order(rows);
  std::set<std::string> names;
  for (const auto& [row, slices] : rows)
    for (const auto& slice : slices) names.insert(slice.name);
  EXPECT_TRUE(names.contains("step"));
  for (const int rank : {0, 1})
    for (const char* row : {"layer\\0", "layer\\23", "negotiated", "replayed buckets", "trainer"})
      EXPECT_TRUE(row_names(trace, rank).contains(row)) << row;
}

// The rows show when a device began and ended its parts of an operation, beside the engine's own
// times.
TEST_F(TimelineFile, PartsOfADeviceHaveRowsOfTheirOwn) {
  FakeDevice device;
  const auto before = Clock::now();
  test::run_threads(
      2,
      [&](Communicator& comm) {
        comm.start_timeline(path_);
        const Tensor gradient({20'000}, DataType::f32, {DeviceKind::fake, 0});
        std::fill_n(gradient.as<float>(), gradient.count(), 1.0f);
        const ReduceOptions halved{.op = ReduceOp::sum, .prescale = 0.5};
        for (int step = 0; step < 12; ++step) comm.allreduce("gradient", gradient, halved).wait();
        for (int step = 0; step < 3; ++step) comm.broadcast("all", gradient).wait();
        // The times of the last parts may arrive after their Works are done.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm.stop_timeline();
      },
      [](Options& options) { options.backend = "peer"; });
  const auto longest =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - before).count();
  const auto trace = read();
  const auto rows = rows_of(trace);
  expect_rows_in_order(rows);
  for (const int rank : {0, 1}) {
    const auto names = row_names(trace, rank);
    for (const auto& [row, least] :
         {std::pair{"device: pack", 12}, {"device: reduce", 12}, {"device: unpack", 12}}) {
      ASSERT_TRUE(names.contains(row)) << row;
      int seen = 0;
      for (const auto& slice : rows.at({rank, names.at(row)})) {
        seen += slice.name.find("gradient") != slice.name.npos;
        EXPECT_GE(slice.end, slice.begin);
        EXPECT_LT(slice.end - slice.begin, longest);
      }
      EXPECT_GE(seen, least - 4) << row << " of rank " << rank;  // some may be in a second row
    }
  }
  EXPECT_TRUE(row_names(trace, 1).contains("device: move"));
}

TEST_F(TimelineFile, CopiesThroughHostMemoryHaveRowsOfTheirOwn) {
  FakeDevice device;
  test::run_threads(2, [&](Communicator& comm) {
    comm.start_timeline(path_);
    const Tensor gradient({20'000}, DataType::f32, {DeviceKind::fake, 0});
    std::fill_n(gradient.as<float>(), gradient.count(), 1.0f);
    for (int step = 0; step < 6; ++step) comm.allreduce("gradient", gradient).wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    comm.stop_timeline();
  });
  const auto trace = read();
  expect_rows_in_order(rows_of(trace));
  for (const int rank : {0, 1})
    for (const char* row : {"device: copy out", "device: copy back"})
      EXPECT_TRUE(row_names(trace, rank).contains(row)) << row;
}

}  // namespace
}  // namespace tutti
