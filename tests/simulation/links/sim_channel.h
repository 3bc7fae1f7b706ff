#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "tests/simulation/events.h"
#include "tests/simulation/random.h"
#include "tutti/backends/channel.h"

namespace tutti::simulation {

/// A link behaves like this, the same both ways.
struct LinkShape {
  Clock::duration latency = std::chrono::microseconds(10);
  uint64_t bytes_per_second = 1'000'000'000;
  size_t buffer = 64 << 10;  // bytes of one way that may be written and not yet known to be read
  /// A call moves at most so many bytes.
  size_t most_written = std::numeric_limits<size_t>::max();
  size_t most_read = std::numeric_limits<size_t>::max();
  /// So many of 1000 calls move less than they could: any number of bytes, mostly a small one.
  unsigned short_writes = 0;
  unsigned short_reads = 0;
  /// So many of 1000 calls that could move bytes find none yet: these come between the call and
  /// the next arm().
  unsigned late = 0;
  /// Whether writing fails once the end is known; else only reading does.
  bool writing_fails = false;

  /// Each feature is on or off first, then gets a rate.
  static LinkShape draw(Random& random);
};

/// Counts what happened on all links of a world, to see what its seeds come to.
struct LinkCounters {
  uint64_t written = 0;  // bytes
  uint64_t read = 0;
  uint64_t lost = 0;  // written, and never to be read
  uint64_t short_writes = 0;
  uint64_t short_reads = 0;
  uint64_t single_writes = 0;  // of one byte
  uint64_t single_reads = 0;
  uint64_t full_writes = 0;   // nothing was taken
  uint64_t late = 0;          // see LinkShape
  uint64_t reader_wakes = 0;  // sleepers that were woken because there is something to read
  uint64_t writer_wakes = 0;
  uint64_t resets = 0;
  uint64_t resets_by_closing = 0;  // one end closed before it had read what came for it
  uint64_t ends = 0;               // an end of file was seen
  uint64_t kills = 0;
  uint64_t half_opens = 0;
  uint64_t stalls = 0;
  uint64_t slow_links = 0;
};

/// A stream between two ranks in virtual time, each end of which is a Channel. Behaves as a
/// connection of TCP does: bytes take time, a buffer bounds what is on its way, and an end that
/// closes with bytes unread takes back what has not left it yet.
///
/// It does nothing in between: no end is told of anything that it did not ask for by arm(). An
/// armed end is told once, when there is a reason to look; as a rule that is its owner's only way
/// to hear of it. Must live until no more events happen. One thread.
class SimLink {
 public:
  SimLink(Events& events, uint64_t seed, const LinkShape& shape, LinkCounters& counters);
  ~SimLink();
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;

  /// End 0 or 1, once each. The channel must not outlive the link.
  std::unique_ptr<Channel> open(int end);
  /// Sets the call that is made, out of an event, when an armed end may move again.
  void on_moved(int end, std::function<void()> call);

  /// Faults. All but the last two are for good.
  /// Both ends see an error; what was on its way is lost.
  void reset();
  /// The process of that end is gone: the other reads what was on its way, then the end of file.
  void kill(int end);
  /// Written bytes vanish, and nothing can be read; nobody is told, not even of an end.
  void half_open();
  /// Nothing arrives for so long, in neither direction.
  void stall(Clock::duration time);
  void slow(Clock::duration latency, uint64_t bytes_per_second);
  /// Whether neither end has closed, and no fault has ended it.
  bool is_open() const;

 private:
  class End;
  using Time = Events::Time;
  struct Piece {
    Time when;         // it is there
    uint64_t through;  // the position after its last byte
  };
  /// From one end to the other. Positions count the bytes since the beginning.
  struct Way {
    std::unique_ptr<std::byte[]> ring;  // of as many bytes as the buffer has
    uint64_t written = 0;
    uint64_t arrived = 0;
    uint64_t read = 0;
    uint64_t told = 0;   // read, and said to be so
    uint64_t freed = 0;  // the writer knows that they are read
    std::deque<Piece> flight;
    std::deque<Piece> acknowledgements;
    Time line_free;                   // when the next byte can leave
    Time last_sign;                   // of the writer, at the reader
    Time told_at;                     // by the reader
    Time last_freed;                  // at the writer
    Time end_at;                      // of the stream, at the reader; Time::max(): there is none
    Time reader_event = Time::max();  // the one that looks after an armed reader
    Time writer_event = Time::max();
    std::string end;                  // how it looks there
    bool end_is_known = false;        // by the reader, whose own bytes were refused
    bool is_late_for_reader = false;  // the last call was late
    bool is_late_for_writer = false;
    bool reader_is_armed = false;
    bool writer_is_armed = false;
  };

  size_t write(int end, std::span<const iovec> parts);
  size_t read(int end, std::span<const iovec> parts);
  bool arm(int end, bool wants_write);
  double quiet_seconds(int end);
  bool delivered(int end);
  void close(int end);

  void send(int from, uint64_t bytes);
  void send_packet(int from, uint64_t bytes);
  void acknowledge(Way& way);
  void come(Way& way);  // takes in what has come by now, both ways
  bool has_ended(const Way& way) const;
  size_t room(const Way& way) const { return shape_.buffer - (way.written - way.freed); }
  /// The closed end `from` hears of bytes that it will never read: what has not left it is lost.
  void cut_off(int from);
  void lose_what_is_on_its_way();
  void end_at(int from, Time when, const std::string& text);
  void watch_reader(int from);
  void watch_writer(int from);
  void wake(int end) const;
  bool is_late(int end, bool& was_late);
  size_t shorten(int end, size_t bytes, unsigned of_thousand);
  Way& way_from(int end) { return ways_[static_cast<size_t>(end)]; }

  Events& events_;
  LinkShape shape_;
  LinkCounters& counters_;
  std::array<Random, 2> random_;  // of each end
  std::array<Way, 2> ways_;       // by the end that writes
  std::array<std::function<void()>, 2> on_moved_;
  std::array<bool, 2> closed_{};
  bool half_open_ = false;
  Time stalled_until_{};
};

}  // namespace tutti::simulation
