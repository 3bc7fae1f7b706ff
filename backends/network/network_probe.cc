#include "tutti/backends/network/network_probe.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/backends/network/network_record.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

// One rank (the asker) runs exchanges with another rank, which answers. In an exchange the asker
// sends a command, which is a number of bytes, and then that many bytes. The answer is one number.
// The asker alone decides how many exchanges there are.

namespace tutti {

namespace {

// No operation has this tag. Tags of negotiated operations count from 1, and tags of recorded steps
// begin with the number of their plan.
constexpr uint64_t kProbeTag = ~uint64_t{0} - 1;

constexpr int64_t kEnd = -1;  // the last command, after which the answering rank stops
constexpr int64_t kFirstBytes = 64 << 10, kLargeBytes = 1 << 20;
constexpr int kPings = 22, kWarmUps = 2, kLargeMessages = 4;
// A measurement stops after this time if it has got at least one answer.
constexpr double kEnoughSeconds = 0.04;
// If the first bytes take this long, the link is not measured with larger messages.
constexpr double kSlowSeconds = 0.02;
// Waiting ranks poll this long before they sleep, as in an operation.
constexpr auto kLook = std::chrono::microseconds(50);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Exchanges messages with one peer and waits for each of them. On a failure it first cancels all
/// messages, so that their memory is free again, and then throws.
class Conversation {
 public:
  Conversation(Transport& transport, int peer, double seconds, Deadline last)
      : transport_(transport), peer_(peer), deadline_(Deadline::after(seconds)), last_(last) {
    poller_.watch(transport.descriptor(), EPOLLIN);
  }
  ~Conversation() { poller_.forget(transport_.descriptor()); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  /// Runs one exchange as the asker. Returns its duration in seconds.
  double ask(int64_t bytes) {
    const auto begin = Clock::now();
    int64_t command = bytes;
    const auto told = send(as_bytes(command), next_key_);
    const auto sent = bytes > 0 ? send(bulk(bytes), next_key_ + 1) : 0;
    if (command == kEnd) {
      wait({told});
    } else {
      wait({told, sent, transport_.irecv(peer_, kProbeTag, next_key_, as_bytes(word_))});
    }
    next_key_ += 2;
    return seconds_since(begin);
  }

  /// Runs one exchange as the answering rank. Returns false after the last one.
  bool answer() {
    int64_t command = 0;
    wait({transport_.irecv(peer_, kProbeTag, next_key_, as_bytes(command))});
    if (command == kEnd) return false;
    if (command < 0 || command > kLargeBytes)
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("rank {} asked for an answer of {} bytes", peer_, command));
    if (command > 0) wait({transport_.irecv(peer_, kProbeTag, next_key_ + 1, bulk(command))});
    wait({send(as_bytes(word_), next_key_)});
    next_key_ += 2;
    return true;
  }

 private:
  static std::span<std::byte> as_bytes(int64_t& number) {
    return std::as_writable_bytes(std::span(&number, 1));
  }
  std::span<std::byte> bulk(int64_t bytes) {
    if (bulk_.empty()) bulk_.resize(kLargeBytes);
    return std::span(bulk_).first(static_cast<size_t>(bytes));
  }
  Ticket send(std::span<const std::byte> bytes, uint32_t key) {
    return transport_.isend(peer_, {.tag = kProbeTag, .key = key}, bytes);
  }

  void wait(std::array<Ticket, 3> tickets) {
    bool failed = false;
    if (settle(tickets, failed, deadline_) && !failed) return;
    const std::string why = failed ? "was lost" : "did not answer in time";
    for (const auto ticket : tickets)
      if (ticket != 0) transport_.cancel(ticket);
    const bool settled = settle(tickets, failed, last_);
    transport_.discard(kProbeTag, kProbeTag);
    // A message that did not end may still arrive in memory that is about to be freed. So this
    // error is fatal.
    if (!settled)
      throw Error(ErrorCode::peer_silent,
                  fmt::format("rank {} waited for rank {} to take or give the rest of a message "
                              "that measures the network, until all ranks must have met; check "
                              "its host and the link, or set TUTTI_PROBE=off",
                              transport_.rank(), peer_))
          .with_rank(peer_);
    throw Error(ErrorCode::timeout, fmt::format("rank {} {}", peer_, why));
  }

  // Waits until all tickets have ended and sets them to 0. Sets `failed` if a ticket failed.
  // Returns false at the deadline.
  bool settle(std::array<Ticket, 3>& tickets, bool& failed, Deadline deadline) {
    auto last_moved = Clock::now();
    while (true) {
      bool pending = false;
      for (auto& ticket : tickets) {
        if (ticket == 0) continue;
        const auto state = transport_.test(ticket);
        if (state == TransferState::pending) {
          pending = true;
          continue;
        }
        failed |= state == TransferState::failed;
        ticket = 0;
      }
      if (!pending) return true;
      if (deadline.passed()) return false;
      const bool moved = transport_.progress();
      if (moved) {
        last_moved = Clock::now();
      } else if (Clock::now() - last_moved < kLook) {
        std::this_thread::yield();
      } else if (transport_.arm()) {
        poller_.wait(std::clamp(deadline.poll_milliseconds(), 0, 10));
      }
    }
  }

  Transport& transport_;
  const int peer_;
  const Deadline deadline_, last_;
  Poller poller_;
  uint32_t next_key_ = 0;
  int64_t word_ = 0;
  std::vector<std::byte> bulk_;
};

LinkFigures measure(Conversation& peer) {
  const auto begin = Clock::now();
  std::vector<double> pings;
  while (static_cast<int>(pings.size()) < kPings &&
         (pings.empty() || seconds_since(begin) < kEnoughSeconds))
    pings.push_back(peer.ask(0));
  if (static_cast<int>(pings.size()) > 2 * kWarmUps)
    pings.erase(pings.begin(), pings.begin() + kWarmUps);
  const auto middle = pings.begin() + static_cast<std::ptrdiff_t>(pings.size() / 2);
  std::nth_element(pings.begin(), middle, pings.end());
  const double latency = *middle / 2;

  // A large message is announced, granted, sent and acknowledged. So three latencies are subtracted
  // from its time.
  const auto bytes_per_second = [&](int64_t bytes, double seconds) {
    return static_cast<double>(bytes) / std::max(seconds - 3 * latency, seconds / 2);
  };
  const auto large_begin = Clock::now();
  const double first = peer.ask(kFirstBytes);
  double best = bytes_per_second(kFirstBytes, first);
  if (first < kSlowSeconds)
    for (int i = 0; i < kLargeMessages && seconds_since(large_begin) < kEnoughSeconds; ++i) {
      const double rate = bytes_per_second(kLargeBytes, peer.ask(kLargeBytes));
      best = i == 0 ? rate : std::max(best, rate);
    }
  return {std::max(latency * 1e6, 0.001), best * 1e-6};
}

/// The ranks with which rank 0 measures (-1: none). `far` is the first rank of the second host.
/// `near` is the next rank of rank 0's own host.
struct Peers {
  int far = -1;
  int near = -1;
};

Peers peers_of(const std::vector<int>& hosts) {
  const auto second = std::find(hosts.begin() + 1, hosts.end(), hosts.front());
  const auto far = std::find(hosts.begin(), hosts.end(), 1);
  return {static_cast<int>(far - hosts.begin()),
          second == hosts.end() ? -1 : static_cast<int>(second - hosts.begin())};
}

void say(const Context& context, LogLevel level, const std::string& line) {
  if (context.log) context.log(level, line);
}

// Called on rank 0. Measures the network between rank 0 and each of `peers`. Even after a failure
// each of them gets the end command.
std::optional<NetworkFigures> ask_peers(const Context& context, Transport& transport,
                                        const Peers& peers) {
  NetworkFigures figures;
  std::string failure;
  const auto ask = [&](int peer, LinkFigures& result) {
    Conversation conversation(transport, peer, kProbeSeconds, context.deadline);
    try {
      if (failure.empty()) result = measure(conversation);
      conversation.ask(kEnd);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::peer_silent) throw;
      if (failure.empty()) failure = error.what();
    }
  };
  ask(peers.far, figures.between);
  if (peers.near >= 0) ask(peers.near, figures.within.emplace());
  if (failure.empty()) return figures;
  say(context, LogLevel::info,
      fmt::format("the network could not be measured ({}); the usual sizes choose algorithms",
                  failure));
  return {};
}

void answer_rank_0(const Context& context, Transport& transport) {
  try {
    // Rank 0 may begin later than this rank, because it may measure with another rank first.
    Conversation conversation(transport, 0, 4 * kProbeSeconds, context.deadline);
    while (conversation.answer()) {
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_silent) throw;
    // Rank 0 also gets all other errors, and reports them.
  }
}

// Returns the key of a network, which consists of the hosts, the interface and the backend.
std::string record_key(const Context& context, const std::vector<int>& hosts) {
  std::string names = context.network_interface;
  int seen = 0;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (hosts[rank] == seen) {
      names += fmt::format("\n{}", context.places[rank].host_name);
      ++seen;
    }
  return fmt::format("{}-{}-{:016x}", context.name.empty() ? "tcp" : context.name, seen,
                     hash_text(names));
}

constexpr std::string_view kMeasure = "measure", kNothing = "nothing";
const std::string kPlanKey = "network/plan", kFiguresKey = "network/figures";

// Returns the figures that the file has for this key. With `needs_near` they must include the
// figures within a host. Sets `can_save` if the file can be written.
std::optional<NetworkFigures> look_up(const Context& context, const std::string& key,
                                      bool needs_near, bool& can_save) {
  can_save = !context.probe.file.empty();
  if (!can_save || context.probe.mode == Probe::Mode::always) return {};
  try {
    const auto figures = NetworkRecord(context.probe.file).find(key);
    if (figures && (figures->within || !needs_near)) return figures;
  } catch (const Error& error) {
    say(context, LogLevel::warning,
        fmt::format("{}; the network is measured again (TUTTI_PROBE=off leaves that out)",
                    error.what()));
    can_save = error.code() == ErrorCode::corrupt_data;
  }
  return {};
}

void keep(const Context& context, const std::string& key, const NetworkFigures& figures) {
  try {
    NetworkRecord(context.probe.file).save(key, figures);
  } catch (const Error& error) {
    say(context, LogLevel::warning,
        fmt::format("{}; the network is measured again by the next job (TUTTI_PROBE=/another/file "
                    "keeps its figures there)",
                    error.what()));
  }
}

// Finds or measures the figures on rank 0. Returns them as the text that all ranks use.
std::string lead(const Context& context, Transport& transport, const std::vector<int>& hosts,
                 std::string& source) {
  const auto peers = peers_of(hosts);
  const auto key = record_key(context, hosts);
  bool can_save = false;
  source = fmt::format("saved in {}", context.probe.file);
  if (const auto saved = look_up(context, key, peers.near >= 0, can_save)) {
    auto text = encode(*saved);
    context.store->set(kPlanKey, text);
    return text;
  }
  context.store->set(kPlanKey, kMeasure);
  const auto begin = Clock::now();
  const auto figures = ask_peers(context, transport, peers);
  source = fmt::format("measured in {:.0f} ms", seconds_since(begin) * 1e3);
  auto text = figures ? encode(*figures) : std::string(kNothing);
  context.store->set(kFiguresKey, text);
  if (figures && can_save) keep(context, key, *figures);
  return text;
}

std::string follow(const Context& context, Transport& transport, const std::vector<int>& hosts) {
  auto text = context.store->get(kPlanKey, context.deadline);
  if (text != kMeasure) return text;
  const auto peers = peers_of(hosts);
  if (context.rank == peers.far || context.rank == peers.near) answer_rank_0(context, transport);
  return context.store->get(kFiguresKey, context.deadline);
}

}  // namespace

Thresholds find_thresholds(const Context& context, Transport& transport, TwoLevels two_levels) {
  const auto hosts = context.hosts();
  const bool is_one_host =
      std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
  if (is_one_host || context.probe.mode == Probe::Mode::off ||
      context.determinism != Determinism::fastest)
    return {};
  std::string source;
  const auto text = context.rank == 0 ? lead(context, transport, hosts, source)
                                      : follow(context, transport, hosts);
  const auto figures = decode_figures(text);
  if (!figures) return {};
  // Rank 0 uses the text too, although it may have measured the figures itself. The text has fewer
  // digits, and all ranks must derive the same thresholds.
  const auto thresholds = derive_thresholds(*figures, hosts, two_levels);
  if (context.rank == 0)
    say(context, LogLevel::info,
        fmt::format("network: {} ({}); allreduce: {}", to_text(*figures), source,
                    to_text(thresholds)));
  return thresholds;
}

}  // namespace tutti
