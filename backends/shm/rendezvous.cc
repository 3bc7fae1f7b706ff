#include "tutti/backends/shm/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <set>
#include <string>

#include "tutti/backends/handshake/admission.h"
#include "tutti/backends/handshake/handshake.h"
#include "tutti/backends/shm/unix_socket.h"
#include "tutti/backends/store/told_failure.h"
#include "tutti/base/little_endian.h"
#include "tutti/base/temporary_file.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr std::string_view kMagic = "tuttishm";
constexpr size_t kTokenBytes = 16;
// The maximum number of connections to accept before the accepted ones are read again.
constexpr int kMostTaken = 256;
constexpr std::string_view kWelcome = "welcome!";

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// The first message of the calling rank. The descriptors of its memory and of its bells come with
/// it.
struct Hello {
  static constexpr size_t kBytes = 8 + 4 + 4 + 4 + 8 + 2 * kTokenBytes;
  uint32_t version = kWireVersion;
  int from = -1;
  int to = -1;
  uint64_t ring_bytes = 0;
  std::string token;

  std::string encode() const {
    std::string bytes(kMagic);
    append_number(bytes, version);
    append_number(bytes, from);
    append_number(bytes, to);
    append_number(bytes, ring_bytes);
    return bytes += token;
  }
  static std::optional<Hello> decode(std::span<const std::byte> bytes) {
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.size() != kBytes || !text.starts_with(kMagic)) return {};
    text.remove_prefix(kMagic.size());
    Hello hello;
    hello.version = take_number<uint32_t>(text);
    hello.from = take_number<int>(text);
    hello.to = take_number<int>(text);
    hello.ring_bytes = take_number<uint64_t>(text);
    hello.token = text;
    return hello;
  }
};

// Returns whether a descriptor is an eventfd. The engine writes to a descriptor that a peer sent,
// and an eventfd cannot block it.
bool is_eventfd(const Descriptor& descriptor) {
  char target[64] = "";
  const auto link = fmt::format("/proc/self/fd/{}", descriptor.get());
  const auto length = ::readlink(link.c_str(), target, sizeof target - 1);
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  return length > 0 &&
         std::string_view(target, static_cast<size_t>(length)) == "anon_inode:[eventfd]" &&
         flags >= 0 && (flags & O_NONBLOCK) != 0;
}

Descriptor open_process(pid_t pid) {
  if (pid <= 0 || pid == ::getpid()) return {};
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Returns true if the kernel reports that the process has ended.
bool has_ended(const Descriptor& process) {
  pollfd entry{process.get(), POLLIN, 0};
  return process && ::poll(&entry, 1, 0) > 0;
}

/// A connection to this rank's socket, from a process of this user, that has not shown the token
/// yet.
class Caller final : public Stranger {
 public:
  Caller(Descriptor connection, Credentials credentials, uint64_t number)
      : socket(std::move(connection)),
        process(credentials),
        place(number),
        name_(fmt::format("process {}", process.pid)) {}
  const std::string& name() const override { return name_; }
  bool has_spoken() override { return has_input(socket.get()); }
  void dismiss() override { socket.reset(); }

  Descriptor socket;
  const Credentials process;
  const uint64_t place;
  const Deadline patience = Deadline::after(kHandshakeSeconds);

 private:
  const std::string name_;
};

// Returns whether an error is a limit of this rank's own system. Nothing that another process sends
// can cause one of these codes.
bool is_own_limit(const Error& error) {
  return error.rank() < 0 &&
         (error.code() == ErrorCode::io || error.code() == ErrorCode::out_of_memory);
}

class Rendezvous {
 public:
  Rendezvous(const Context& context, std::span<const int> peers, int memory)
      : context_(context),
        store_(*context.store),
        told_(store_, "shm", context.rank, context.size),
        memory_(memory),
        admission_(fmt::format("rank {} at its Unix socket", context.rank), context.log) {
    for (const int peer : peers) {
      if (peer == context.rank) continue;
      missing_.push_back(peer);
      if (peer < context.rank) uncalled_.push_back(peer);
    }
    std::sort(missing_.begin(), missing_.end());
    const auto hosts = context.hosts();
    const int here = hosts[static_cast<size_t>(context.rank)];
    ring_bytes_ = ring_bytes_for(static_cast<int>(std::count(hosts.begin(), hosts.end(), here)));
  }

  std::map<int, std::unique_ptr<ShmEnds>> run() {
    try {
      listen();
      while (!missing_.empty()) {
        std::erase_if(uncalled_, [this](int peer) { return call(peer); });
        if (missing_.empty()) break;
        wait();
        hear_answers();
        hear_strangers();
        look_for_failures();
      }
      store_.erase(address_key(context_.rank));
    } catch (const Error& error) {
      // The peers read this failure in the store, so they need not wait for their deadlines.
      if (error.code() != ErrorCode::timeout) told_.fail(error);
      throw;
    }
    return std::move(connected_);
  }

 private:
  struct Call {
    int peer;
    std::unique_ptr<ShmEnds> ends;
  };

  static std::string address_key(int rank) { return fmt::format("shm/address/{}", rank); }

  void listen() {
    if (missing_.empty() || missing_.back() < context_.rank) return;
    const auto name = "tutti-" + random_hex(16);
    token_ = random_hex(kTokenBytes);
    listener_ = listen_unix(name);
    store_.set(address_key(context_.rank), name + " " + token_);
  }

  /// Connects to a peer and sends it the Hello. Returns true if only the peer's answer is missing.
  /// Returns false if this rank must try again.
  bool call(int peer) {
    const auto address = store_.try_get(address_key(peer));
    if (!address) return false;
    const auto words = split_text(*address, ' ');
    if (words.size() != 2 || words[0].size() > 64 || words[1].size() != 2 * kTokenBytes)
      throw Error(
          ErrorCode::corrupt_data,
          fmt::format("the store holds no Unix socket for rank {}: \"{:.40}\"", peer, *address))
          .with_rank(peer);
    bool busy = false;
    Descriptor socket = connect_unix(words[0], busy);
    if (busy) return false;
    if (!socket && hung_up_.contains(peer)) {
      look_for_failures();
      throw_hung_up(peer);
    }
    if (!socket)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("rank {} cannot reach rank {} through shared memory: no process listens "
                      "at its socket in this network namespace. It runs in another one, or it "
                      "ended; use backend tcp or hierarchical",
                      context_.rank, peer))
          .with_rank(peer);
    const auto credentials = peer_credentials(socket.get());
    check_user(peer, credentials.uid);

    auto ends = std::make_unique<ShmEnds>(
        ShmEnds{SharedRings::create(ring_bytes_), 0, {}, {}, std::move(socket), {}, {}});
    ends->process = open_process(credentials.pid);
    Hello hello;
    hello.from = context_.rank;
    hello.to = peer;
    hello.ring_bytes = ring_bytes_;
    hello.token = words[1];
    std::vector<int> descriptors = {ends->rings.descriptor(), ends->peer.descriptor(),
                                    ends->own.descriptor()};
    if (memory_ >= 0) descriptors.push_back(memory_);
    if (!send_unix(ends->socket.get(), as_bytes(hello.encode()), descriptors)) {
      hung_up(peer, *ends);
      return false;
    }
    calls_.push_back({peer, std::move(ends)});
    return true;
  }

  void check_user(int peer, uid_t uid) const {
    if (uid == ::geteuid()) return;
    throw Error(ErrorCode::authentication,
                fmt::format("rank {} runs as user {}, rank {} as user {}; ranks that share memory "
                            "must belong to one user",
                            peer, uid, context_.rank, ::geteuid()))
        .with_rank(peer);
  }

  // Handles a call that the peer closed. If the peer's process has ended, this throws. Otherwise
  // too many callers crowd the peer's socket, and this rank calls again.
  void hung_up(int peer, const ShmEnds& ends) {
    if (has_ended(ends.process)) throw_hung_up(peer);
    hung_up_.insert(peer);
  }

  [[noreturn]] void throw_hung_up(int peer) const {
    throw Error(ErrorCode::peer_lost,
                fmt::format("rank {} ended while rank {} connected to it through shared memory",
                            peer, context_.rank))
        .with_rank(peer);
  }

  // Waits until a peer calls or answers, or until this rank must read the store again.
  void wait() {
    if (context_.deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} waited for {} to connect through shared memory, without "
                              "success; did it die, or is TUTTI_CONNECT_TIMEOUT too short?",
                              context_.rank, format_rank_set(missing_)))
          .with_rank(missing_.front());
    std::vector<pollfd> watched;
    const auto now = Clock::now();
    const auto opening = admission_.next_opening(now);
    if (listener_ && opening <= now) watched.push_back({listener_.get(), POLLIN, 0});
    for (const auto& caller : callers_) watched.push_back({caller->socket.get(), POLLIN, 0});
    for (const auto& call : calls_) watched.push_back({call.ends->socket.get(), POLLIN, 0});
    constexpr int kMostMilliseconds = 50;
    pause_ = uncalled_.empty() ? kMostMilliseconds : std::min(2 * pause_ + 1, kMostMilliseconds);
    int milliseconds = pause_;
    if (opening > now)
      milliseconds = std::min(milliseconds, Deadline::at(opening).poll_milliseconds());
    if (!context_.deadline.is_never())
      milliseconds = std::min(milliseconds, context_.deadline.poll_milliseconds());
    ::poll(watched.data(), watched.size(), milliseconds);
  }

  void hear_answers() {
    std::erase_if(calls_, [this](Call& call) {
      std::optional<UnixMessage> answer;
      try {
        answer = receive_unix(call.ends->socket.get(), kWelcome.size());
      } catch (const Error& error) {
        if (is_own_limit(error)) throw;
        hung_up(call.peer, *call.ends);
        uncalled_.push_back(call.peer);
        return true;
      }
      if (!answer) return false;
      if (!std::ranges::equal(answer->bytes, as_bytes(kWelcome)))
        throw Error(
            ErrorCode::corrupt_data,
            fmt::format("rank {} answered with something other than a welcome message", call.peer))
            .with_rank(call.peer);
      if (memory_ >= 0 && answer->descriptors.size() == 1)
        call.ends->memory = std::move(answer->descriptors[0]);
      connected(call.peer, std::move(call.ends));
      return true;
    });
  }

  void connected(int peer, std::unique_ptr<ShmEnds> ends) {
    ends->rings.close_descriptor();
    connected_[peer] = std::move(ends);
    std::erase(missing_, peer);
  }

  // Accepts waiting connections. A process of another user is turned away before it takes a slot.
  void take_callers() {
    for (int taken = 0; listener_ && taken < kMostTaken; ++taken) {
      const auto now = Clock::now();
      if (admission_.next_opening(now) > now) return;
      Descriptor socket;
      try {
        socket = accept_unix(listener_.get());
      } catch (const Error&) {
        // While callers wait, running out of descriptors is not fatal: these callers' descriptors
        // will become free again.
        if (callers_.empty()) throw;
      }
      if (!socket) return;
      const auto process = peer_credentials(socket.get());
      if (process.uid != ::geteuid()) {
        admission_.turned_away(Admission::Reason::other_user,
                               fmt::format("process {} belongs to user {}, this rank to user {}",
                                           process.pid, process.uid, ::geteuid()),
                               now);
        continue;
      }
      const auto make = [&](uint64_t place) {
        return callers_.emplace_back(std::make_shared<Caller>(std::move(socket), process, place));
      };
      admission_.enter(make, now);
    }
  }

  void hear_strangers() {
    take_callers();
    std::erase_if(callers_, [this](const std::shared_ptr<Caller>& caller) {
      if (!caller->socket) return true;  // Admission has dismissed it
      if (is_silent(*caller)) return false;
      admission_.leave(caller->place);
      return true;
    });
  }

  // Returns true if the caller has sent nothing yet. Otherwise it has become a peer or was turned
  // away.
  bool is_silent(Caller& caller) {
    const auto turn_away = [&](Admission::Reason reason, const std::string& why) {
      admission_.turned_away(reason, fmt::format("{}{}", caller.name(), why), Clock::now());
      return false;
    };
    try {
      auto message = receive_unix(caller.socket.get(), Hello::kBytes);
      if (!message && !caller.patience.passed()) return true;
      if (!message) return turn_away(Admission::Reason::silent, " said nothing");
      if (!welcome(caller, std::move(*message)))
        return turn_away(Admission::Reason::unproved, " does not know the token of this job");
    } catch (const Error& error) {
      // An error that the caller caused must not fail this rank, because the caller may not know
      // the token.
      if (error.rank() >= 0 || is_own_limit(error)) throw;
      return turn_away(Admission::Reason::unproved, fmt::format(": {}", error.what()));
    }
    return false;
  }

  // Makes the caller a peer. Returns false if it does not know the token or is not an expected
  // rank.
  bool welcome(Caller& caller, UnixMessage message) {
    const auto hello = Hello::decode(message.bytes);
    if (!hello || hello->token != token_) return false;
    const int peer = hello->from;
    if (hello->to != context_.rank || peer <= context_.rank ||
        !std::binary_search(missing_.begin(), missing_.end(), peer))
      return false;
    if (hello->version != kWireVersion)
      throw Error(ErrorCode::version,
                  fmt::format("rank {} speaks version {} of our protocols, rank {} version {}; all "
                              "ranks must run the same version",
                              peer, hello->version, context_.rank, kWireVersion))
          .with_rank(peer);
    if (message.descriptors.size() != (memory_ < 0 ? 3u : 4u) ||
        !SharedRings::is_valid_size(hello->ring_bytes) || !is_eventfd(message.descriptors[1]) ||
        !is_eventfd(message.descriptors[2]))
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("rank {} did not send the descriptors of its ring buffers to rank {}",
                              peer, context_.rank))
          .with_rank(peer);
    auto rings = SharedRings::adopt(std::move(message.descriptors[0]), hello->ring_bytes);
    auto ends = std::make_unique<ShmEnds>(ShmEnds{std::move(rings),
                                                  1,
                                                  Bell(std::move(message.descriptors[1])),
                                                  Bell(std::move(message.descriptors[2])),
                                                  std::move(caller.socket),
                                                  {},
                                                  {}});
    if (memory_ >= 0) ends->memory = std::move(message.descriptors[3]);
    ends->process = open_process(caller.process.pid);
    if (!send_unix(ends->socket.get(), as_bytes(kWelcome),
                   std::span(&memory_, memory_ < 0 ? 0u : 1u)))
      throw_hung_up(peer);
    connected(peer, std::move(ends));
    return true;
  }

  void look_for_failures() {
    constexpr double kSecondsBetween = 0.1;
    if (!next_look_.passed()) return;
    next_look_ = Deadline::after(kSecondsBetween);
    told_.look();
  }

  const Context& context_;
  Store& store_;
  const ToldFailure told_;
  const int memory_;
  size_t ring_bytes_ = 0;
  std::string token_;
  Descriptor listener_;
  std::vector<int> missing_;   // ranks not yet connected, ascending
  std::vector<int> uncalled_;  // lower ranks that this rank has not called yet
  std::list<Call> calls_;
  std::set<int> hung_up_;  // lower ranks that closed a connection before they answered
  Admission admission_;
  std::list<std::shared_ptr<Caller>> callers_;
  std::map<int, std::unique_ptr<ShmEnds>> connected_;
  int pause_ = 0;
  Deadline next_look_ = Deadline::after(0.1);
};

}  // namespace

std::map<int, std::unique_ptr<ShmEnds>> connect_through_memory(const Context& context,
                                                               std::span<const int> peers,
                                                               int memory) {
  return Rendezvous(context, peers, memory).run();
}

}  // namespace tutti
