#include "tests/simulation/links/sim_channel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

namespace {

constexpr auto kNever = Events::Time::max();

// Returns a length from 1 to `bytes`. Each number of binary digits is equally likely.
size_t any_length(Random& random, size_t bytes) {
  const auto digits = random.below(static_cast<uint64_t>(std::bit_width(bytes))) + 1;
  return std::min<size_t>(bytes, 1 + random.below(uint64_t{1} << digits));
}

size_t bytes_in(std::span<const iovec> parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += part.iov_len;
  return bytes;
}

// Copies `bytes` bytes between the parts and a ring buffer, from the ring's position `at` on.
template <class Copy>
void along_the_ring(std::span<const iovec> parts, std::span<std::byte> ring, uint64_t at,
                    size_t bytes, Copy copy) {
  for (const auto& part : parts) {
    auto* memory = static_cast<std::byte*>(part.iov_base);
    for (size_t left = std::min(part.iov_len, bytes); left > 0;) {
      const size_t begin = at % ring.size();
      const size_t count = std::min(left, ring.size() - begin);
      copy(memory, ring.data() + begin, count);
      memory += count;
      at += count;
      left -= count;
      bytes -= count;
    }
  }
}

}  // namespace

LinkShape LinkShape::draw(Random& random) {
  const auto is_on = [&] { return random.chance(300); };
  const auto is_tiny = [&] { return random.chance(50); };  // needs an event for every few bytes
  LinkShape shape;
  shape.latency = std::chrono::nanoseconds(any_length(random, 50'000'000));
  shape.bytes_per_second = 10'000 * any_length(random, 1'000'000);
  shape.buffer = is_tiny() ? 1 + random.below(100) : 512 + any_length(random, 256 << 10);
  if (is_tiny()) shape.most_written = 1 + random.below(60);
  if (is_tiny()) shape.most_read = 1 + random.below(60);
  if (is_on()) shape.short_writes = static_cast<unsigned>(random.below(1000));
  if (is_on()) shape.short_reads = static_cast<unsigned>(random.below(1000));
  if (is_on()) shape.late = static_cast<unsigned>(random.below(500));
  shape.writing_fails = random.chance(500);
  return shape;
}

class SimLink::End final : public Channel {
 public:
  End(SimLink& link, int end) : link_(link), end_(end) {}
  ~End() override { link_.close(end_); }
  size_t write(std::span<const iovec> parts) override { return link_.write(end_, parts); }
  size_t read(std::span<std::byte> bytes) override {
    const iovec part{bytes.data(), bytes.size()};
    return link_.read(end_, {&part, 1});
  }
  size_t read_parts(std::span<const iovec> parts) override { return link_.read(end_, parts); }
  bool arm(bool wants_write) override { return link_.arm(end_, wants_write); }
  void watch(Poller&) override { TUTTI_CHECK(!"a simulated link has no descriptor"); }
  std::string_view route() const override { return "simulated"; }
  double quiet_seconds() override { return link_.quiet_seconds(end_); }
  bool delivered() override { return link_.delivered(end_); }

 private:
  SimLink& link_;
  const int end_;
};

SimLink::SimLink(Events& events, uint64_t seed, const LinkShape& shape, LinkCounters& counters)
    : events_(events),
      shape_(shape),
      counters_(counters),
      random_{Random(seed, 1), Random(seed, 2)} {
  TUTTI_CHECK(shape.buffer > 0 && shape.most_read > 0 && shape.most_written > 0);
  for (auto& way : ways_) {
    way.line_free = way.last_sign = way.told_at = way.last_freed = events.now();
    way.end_at = kNever;
  }
}

SimLink::~SimLink() = default;

std::unique_ptr<Channel> SimLink::open(int end) { return std::make_unique<End>(*this, end); }

void SimLink::on_moved(int end, std::function<void()> call) {
  on_moved_[static_cast<size_t>(end)] = std::move(call);
}

// --- calls of an end ----------------------------------------------------------------------------

bool SimLink::is_late(int end, bool& was_late) {
  const bool is_late =
      !was_late && shape_.late > 0 && random_[static_cast<size_t>(end)].chance(shape_.late);
  counters_.late += is_late;
  return was_late = is_late;  // never twice in a row, because the bytes have arrived by then
}

size_t SimLink::shorten(int end, size_t bytes, unsigned of_thousand) {
  auto& random = random_[static_cast<size_t>(end)];
  return of_thousand > 0 && random.chance(of_thousand) ? any_length(random, bytes) : bytes;
}

size_t SimLink::write(int end, std::span<const iovec> parts) {
  TUTTI_CHECK(!closed_[static_cast<size_t>(end)]);
  Way& way = way_from(end);
  Way& back = way_from(1 - end);
  way.writer_is_armed = false;
  come(way);
  come(back);
  if (has_ended(back)) {
    back.end_is_known = true;  // everything before it has arrived, so no read is late
    if (shape_.writing_fails) throw Error(ErrorCode::peer_lost, back.end);
    return 0;
  }
  const size_t wanted = bytes_in(parts);
  const size_t most = std::min({wanted, room(way), shape_.most_written});
  // A link never refuses bytes of a write that fits its buffer.
  if (most == 0 || (most < wanted && is_late(end, way.is_late_for_writer))) {
    counters_.full_writes += wanted > 0;
    return 0;
  }
  const size_t bytes = shorten(end, most, shape_.short_writes);
  counters_.short_writes += bytes < wanted;
  counters_.single_writes += bytes == 1;
  counters_.written += bytes;
  if (half_open_) {
    way.written += bytes;
    counters_.lost += bytes;
    return bytes;
  }
  if (!way.ring) way.ring = std::make_unique_for_overwrite<std::byte[]>(shape_.buffer);
  along_the_ring(
      parts, {way.ring.get(), shape_.buffer}, way.written, bytes,
      [](std::byte* memory, std::byte* ring, size_t count) { std::memcpy(ring, memory, count); });
  send(end, bytes);
  return bytes;
}

void SimLink::send(int from, uint64_t bytes) {
  // A slow link delivers a long write in packets, one after another.
  constexpr uint64_t kPackets = 20;  // at least this many in a second
  const uint64_t most = std::max<uint64_t>(shape_.bytes_per_second / kPackets, 1);
  while (bytes > 0) {
    send_packet(from, std::min(bytes, most));
    bytes -= std::min(bytes, most);
  }
  watch_reader(from);
}

void SimLink::send_packet(int from, uint64_t bytes) {
  Way& way = way_from(from);
  way.written += bytes;
  const auto nanoseconds = bytes * 1'000'000'000 / shape_.bytes_per_second;
  way.line_free = std::max(way.line_free, events_.now()) + std::chrono::nanoseconds(nanoseconds);
  auto when = way.line_free + shape_.latency;
  if (closed_[static_cast<size_t>(1 - from)]) {
    // The peer's host answers that these bytes will never be read.
    counters_.lost += bytes;
    events_.at(when, [this, from] { cut_off(1 - from); });
    return;
  }
  if (!way.flight.empty()) when = std::max(when, way.flight.back().when);
  way.flight.push_back({when, way.written});
}

size_t SimLink::read(int end, std::span<const iovec> parts) {
  TUTTI_CHECK(!closed_[static_cast<size_t>(end)]);
  Way& way = way_from(1 - end);
  way.reader_is_armed = false;
  come(way);
  const uint64_t here = way.arrived - way.read;
  if ((here > 0 || has_ended(way)) && !way.end_is_known && is_late(end, way.is_late_for_reader))
    return 0;
  if (here == 0) {
    if (!has_ended(way)) return 0;
    ++counters_.ends;
    throw Error(ErrorCode::peer_lost, way.end);
  }
  const size_t wanted = bytes_in(parts);
  const size_t most = std::min({wanted, static_cast<size_t>(here), shape_.most_read});
  const size_t bytes = shorten(end, most, shape_.short_reads);
  counters_.short_reads += bytes < std::min<uint64_t>(wanted, here);
  counters_.single_reads += bytes == 1;
  counters_.read += bytes;
  along_the_ring(parts, {way.ring.get(), shape_.buffer}, way.read, bytes,
                 [](std::byte* memory, const std::byte* ring, size_t count) {
                   std::memcpy(memory, ring, count);
                 });
  way.read += bytes;
  acknowledge(way);
  watch_writer(1 - end);
  return bytes;
}

// Acknowledges several small reads together. Otherwise a full buffer would always be filled byte by
// byte.
void SimLink::acknowledge(Way& way) {
  // Like TCP, it opens the window by a large part at a time, or a stream would go on in ever
  // smaller pieces. But the writer learns of a read within 40 ms.
  constexpr auto kLongest = std::chrono::milliseconds(40);
  const bool is_worth_it =
      way.read - way.told >= shape_.buffer / 4 || events_.now() - way.told_at >= kLongest;
  if (!is_worth_it && way.read != way.written) return;
  way.told = way.read;
  way.told_at = events_.now();
  const auto when = events_.now() + shape_.latency;
  if (!way.acknowledgements.empty()) {
    auto& last = way.acknowledgements.back();
    if (last.when + shape_.latency / 8 >= when) {
      last.through = way.read;
      return;
    }
  }
  way.acknowledgements.push_back({when, way.read});
}

bool SimLink::arm(int end, bool wants_write) {
  TUTTI_CHECK(!closed_[static_cast<size_t>(end)]);
  Way& in = way_from(1 - end);
  Way& out = way_from(end);
  in.reader_is_armed = out.writer_is_armed = false;
  come(in);
  come(out);
  if (in.arrived > in.read || has_ended(in)) return false;
  if (wants_write && room(out) > 0) return false;
  in.reader_is_armed = true;
  out.writer_is_armed = wants_write;
  watch_reader(1 - end);
  if (wants_write) watch_writer(end);
  return true;
}

double SimLink::quiet_seconds(int end) {
  Way& in = way_from(1 - end);
  Way& out = way_from(end);
  come(in);
  come(out);
  auto sign = in.last_sign;
  if (out.freed < out.written) sign = std::max(sign, out.last_freed);
  return std::chrono::duration<double>(events_.now() - sign).count();
}

bool SimLink::delivered(int end) {
  Way& way = way_from(end);
  come(way);
  come(way_from(1 - end));
  return way.arrived == way.written || has_ended(way_from(1 - end));
}

// --- arrivals -----------------------------------------------------------------------------------

void SimLink::come(Way& way) {
  if (half_open_ || events_.now() < stalled_until_) return;
  while (!way.flight.empty() && way.flight.front().when <= events_.now()) {
    way.arrived = way.flight.front().through;
    way.last_sign = way.flight.front().when;
    way.flight.pop_front();
  }
  while (!way.acknowledgements.empty() && way.acknowledgements.front().when <= events_.now()) {
    way.freed = way.acknowledgements.front().through;
    way.last_freed = way.acknowledgements.front().when;
    way.acknowledgements.pop_front();
  }
}

bool SimLink::has_ended(const Way& way) const {
  return way.end_at <= events_.now() && way.flight.empty() && !half_open_ &&
         events_.now() >= stalled_until_;
}

void SimLink::watch_reader(int from) {
  Way& way = way_from(from);
  if (half_open_ || !way.reader_is_armed) return;
  auto when = way.flight.empty() ? way.end_at : way.flight.front().when;
  if (when == kNever) return;
  when = std::max({when, stalled_until_, events_.now()});
  if (way.reader_event <= when) return;
  way.reader_event = when;
  events_.at(when, [this, from] {
    Way& way = way_from(from);
    if (way.reader_event != events_.now()) return;  // a newer event replaced this one
    way.reader_event = kNever;
    if (!way.reader_is_armed) return;
    come(way);
    if (way.arrived == way.read && !has_ended(way)) return watch_reader(from);
    way.reader_is_armed = false;
    ++counters_.reader_wakes;
    wake(1 - from);
  });
}

void SimLink::watch_writer(int from) {
  Way& way = way_from(from);
  if (half_open_ || !way.writer_is_armed || way.acknowledgements.empty()) return;
  const auto when = std::max({way.acknowledgements.front().when, stalled_until_, events_.now()});
  if (way.writer_event <= when) return;
  way.writer_event = when;
  events_.at(when, [this, from] {
    Way& way = way_from(from);
    if (way.writer_event != events_.now()) return;
    way.writer_event = kNever;
    if (!way.writer_is_armed) return;
    come(way);
    if (room(way) == 0) return watch_writer(from);
    way.writer_is_armed = false;
    ++counters_.writer_wakes;
    wake(from);
  });
}

void SimLink::wake(int end) const {
  const auto& call = on_moved_[static_cast<size_t>(end)];
  if (call && !closed_[static_cast<size_t>(end)]) call();
}

// --- ends and faults ----------------------------------------------------------------------------

void SimLink::end_at(int from, Time when, const std::string& text) {
  Way& way = way_from(from);
  way.end_at = when;
  way.end = text;
  watch_reader(from);
}

void SimLink::cut_off(int from) {
  Way& way = way_from(from);
  come(way);
  if (half_open_ || has_ended(way) || closed_[static_cast<size_t>(1 - from)]) return;
  const auto now = events_.now();
  // Bytes that have not left yet never leave.
  while (!way.flight.empty() && way.flight.back().when > now + shape_.latency)
    way.flight.pop_back();
  const auto through = way.flight.empty() ? way.arrived : way.flight.back().through;
  counters_.lost += way.written - through;
  way.written = through;
  ++counters_.resets_by_closing;
  end_at(from, now + shape_.latency, "connection reset");
}

void SimLink::close(int end) {
  if (std::exchange(closed_[static_cast<size_t>(end)], true)) return;
  Way& out = way_from(end);
  Way& in = way_from(1 - end);
  come(in);
  come(out);
  in.reader_is_armed = out.writer_is_armed = false;
  counters_.lost += (half_open_ ? in.arrived : in.written) - in.read;
  const bool was_unread = in.arrived > in.read;
  const auto next = in.flight.empty() ? kNever : in.flight.front().when;
  in.flight.clear();
  if (half_open_ || out.end_at != kNever) return;
  end_at(end, events_.now() + shape_.latency, "end of file");
  if (was_unread)
    cut_off(end);
  else if (next != kNever)
    events_.at(next, [this, end] { cut_off(end); });
}

void SimLink::kill(int end) {
  ++counters_.kills;
  close(end);
}

void SimLink::lose_what_is_on_its_way() {
  for (int from = 0; from < 2; ++from) {
    Way& way = way_from(from);
    come(way);
    way.flight.clear();
    if (half_open_ || closed_[static_cast<size_t>(1 - from)])
      continue;  // those bytes are counted
                 // already
    counters_.lost += way.written - way.arrived;
  }
}

void SimLink::reset() {
  ++counters_.resets;
  lose_what_is_on_its_way();
  half_open_ = false;
  stalled_until_ = {};
  for (int end = 0; end < 2; ++end) {
    way_from(end).written = way_from(end).arrived;
    end_at(end, events_.now(), "connection reset");
  }
}

void SimLink::half_open() {
  ++counters_.half_opens;
  lose_what_is_on_its_way();
  half_open_ = true;
}

bool SimLink::is_open() const {
  return !closed_[0] && !closed_[1] &&
         std::ranges::all_of(ways_, [](const Way& way) { return way.end_at == Time::max(); });
}

void SimLink::stall(Clock::duration time) {
  ++counters_.stalls;
  for (auto& way : ways_) come(way);
  stalled_until_ = std::max(stalled_until_, events_.now() + time);
}

void SimLink::slow(Clock::duration latency, uint64_t bytes_per_second) {
  ++counters_.slow_links;
  shape_.latency = latency;
  shape_.bytes_per_second = bytes_per_second;
}

}  // namespace tutti::simulation
