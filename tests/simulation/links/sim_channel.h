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

/// The properties of a link, the same in both directions.
struct LinkShape {
  Clock::duration latency = std::chrono::microseconds(10);
  uint64_t bytes_per_second = 1'000'000'000;
  size_t buffer = 64 << 10;  // bytes in one direction that may be written and not yet acknowledged
  /// The most bytes that one call moves.
  size_t most_written = std::numeric_limits<size_t>::max();
  size_t most_read = std::numeric_limits<size_t>::max();
  /// How many of 1000 calls move fewer bytes than they could: any number, mostly a small one.
  unsigned short_writes = 0;
  unsigned short_reads = 0;
  /// How many of 1000 calls find nothing to move, although there are bytes. These arrive between
  /// the call and the next arm().
  unsigned late = 0;
  /// If true, writing fails too once the end is known; otherwise only reading does.
  bool writing_fails = false;

  /// Draws a shape. Each feature is first switched on or off, and then gets a rate.
  static LinkShape draw(Random& random);
};

/// Counts the events on all links of a world, to show what its seeds cover.
struct LinkCounters {
  uint64_t written = 0;  // bytes
  uint64_t read = 0;
  uint64_t lost = 0;  // written, but never read
  uint64_t short_writes = 0;
  uint64_t short_reads = 0;
  uint64_t single_writes = 0;  // writes of one byte
  uint64_t single_reads = 0;
  uint64_t full_writes = 0;   // writes that took no byte
  uint64_t late = 0;          // see LinkShape
  uint64_t reader_wakes = 0;  // wake-ups of armed readers
  uint64_t writer_wakes = 0;
  uint64_t resets = 0;
  uint64_t resets_by_closing = 0;  // ends that closed with unread bytes
  uint64_t ends = 0;               // ends of file that were seen
  uint64_t kills = 0;
  uint64_t half_opens = 0;
  uint64_t stalls = 0;
  uint64_t slow_links = 0;
};

/// A stream between two ranks in virtual time. Each of its two ends is a Channel. It behaves like a
/// TCP connection: bytes take time, a buffer limits the bytes under way, and an end that closes
/// with unread bytes takes back its bytes that have not left yet.
///
/// An end is notified only if it was armed with arm(), and then once, when there is a reason to
/// check. As a rule, its owner learns of a change only by that. The link must live until no more
/// events happen. It is used by one thread.
class SimLink {
 public:
  SimLink(Events& events, uint64_t seed, const LinkShape& shape, LinkCounters& counters);
  ~SimLink();
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;

  /// Opens end 0 or 1, each once. The channel must not outlive the link.
  std::unique_ptr<Channel> open(int end);
  /// Sets the function that an event calls when an armed end may move again.
  void on_moved(int end, std::function<void()> call);

  /// Faults. All but the last two are permanent. Both ends see an error, and the bytes under way
  /// are lost.
  void reset();
  /// Ends the process of that end. The other end reads the bytes under way, then the end of file.
  void kill(int end);
  /// Written bytes vanish and nothing can be read. No end is notified, not even of a close.
  void half_open();
  /// Nothing arrives in either direction for `time`.
  void stall(Clock::duration time);
  void slow(Clock::duration latency, uint64_t bytes_per_second);
  /// Returns true while neither end has closed and no fault has ended the link.
  bool is_open() const;

 private:
  class End;
  using Time = Events::Time;
  struct Piece {
    Time when;         // when it has arrived
    uint64_t through;  // the position after its last byte
  };
  /// One direction of the link. Positions count the bytes since the beginning.
  struct Way {
    std::unique_ptr<std::byte[]> ring;  // as large as the buffer
    uint64_t written = 0;
    uint64_t arrived = 0;
    uint64_t read = 0;
    uint64_t told = 0;   // bytes whose reading was acknowledged
    uint64_t freed = 0;  // bytes whose acknowledgement the writer has received
    std::deque<Piece> flight;
    std::deque<Piece> acknowledgements;
    Time line_free;                   // when the next byte can leave
    Time last_sign;                   // when the reader last received something
    Time told_at;                     // when the reader last acknowledged
    Time last_freed;                  // when the writer last received an acknowledgement
    Time end_at;                      // when the reader sees the end of the stream; Time::max():
                                      // never
    Time reader_event = Time::max();  // the event that checks an armed reader
    Time writer_event = Time::max();
    std::string end;                  // the text of the error at the reader
    bool end_is_known = false;        // the reader knows the end, because its own bytes were
                                      // refused
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
  void come(Way& way);  // accepts everything that has arrived by now, in both directions
  bool has_ended(const Way& way) const;
  size_t room(const Way& way) const { return shape_.buffer - (way.written - way.freed); }
  /// The closed end `from` learns that its peer wrote bytes which it will never read. The bytes of
  /// `from` that have not left yet are lost.
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
  std::array<Random, 2> random_;  // one for each end
  std::array<Way, 2> ways_;       // by the end that writes
  std::array<std::function<void()>, 2> on_moved_;
  std::array<bool, 2> closed_{};
  bool half_open_ = false;
  Time stalled_until_{};
};

}  // namespace tutti::simulation
