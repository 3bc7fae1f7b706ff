#include "tutti/backends/tcp/connector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/backends/handshake/handshake_session.h"
#include "tutti/backends/network/asio.h"
#include "tutti/backends/network/network_interface.h"
#include "tutti/backends/network/sockets.h"
#include "tutti/backends/store/told_failure.h"
#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/process/limits.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr std::chrono::milliseconds kRetryPause(50);
// The pause between two checks of the store for the failure of another rank.
constexpr std::chrono::milliseconds kFailureCheck(200);
// A peer may refuse connections for this time. A rank listens until all its peers are connected, so
// a peer that refuses for longer has ended.
constexpr std::chrono::seconds kRefusalPatience(1);

std::string address_key(int lane, int rank) { return fmt::format("tcp/{}/{}", lane, rank); }

Deadline earlier(Deadline a, Deadline b) { return a.when() < b.when() ? a : b; }

// Agrees on a random text that only the ranks of this communicator know. It keeps connections of
// two communicators apart.
std::string agree_on_scope(Store& store, int lane) {
  std::array<unsigned char, 16> random;
  if (RAND_bytes(random.data(), random.size()) != 1)
    throw Error(ErrorCode::io, "the operating system gives no random numbers");
  const auto word = fmt::format("{:02x}", fmt::join(random, ""));
  return "tcp " + store.set_once(fmt::format("tcp/{}/scope", lane), word);
}

// Connects one rank with its peers. All work happens in run(), on the caller's thread.
class Connector {
 public:
  Connector(const Context& context, std::span<const int> peers, int lane);
  std::map<int, Descriptor> run();

 private:
  struct Peer {
    Peer(int rank, asio::io_context& io) : rank(rank), retry(io) {}
    const int rank;
    tcp::endpoint endpoint = {};
    std::optional<tcp::socket> socket = {};
    std::string seen = {};  // why the peer is not connected yet
    Clock::time_point first_refusal = Clock::time_point::max();
    asio::steady_timer retry;
  };

  void publish_address();
  void look_up(Peer& peer);
  std::string wait_for_address(const Peer& peer);
  void open_gate();
  void welcome(tcp::socket socket, int rank);
  void turn_away(const std::exception_ptr& error, int claimed_rank);
  void call(Peer& peer);
  void greet(Peer& peer, tcp::socket socket);
  void call_again(Peer& peer, const std::string& seen);
  void watch_for_failures();

  Peer* find(int rank);
  bool complete() const;
  Error missing_error() const;
  std::string name(const Peer& peer) const {
    return fmt::format("rank {} ({})", peer.rank, to_text(peer.endpoint));
  }
  HandshakeTerms terms(int peer, std::string peer_name) const {
    return {.secret = context_.secret,
            .scope = scope_,
            .rank = context_.rank,
            .peer = peer,
            .peer_name = std::move(peer_name)};
  }

  const Context& context_;
  const int lane_;
  const ToldFailure told_;
  asio::io_context io_{1};
  std::string scope_;
  tcp::acceptor acceptor_{io_};
  tcp::endpoint own_endpoint_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::shared_ptr<Gate> gate_;
  asio::steady_timer failure_check_{io_};
  std::exception_ptr failure_;
};

Connector::Connector(const Context& context, std::span<const int> peers, int lane)
    : context_(context), lane_(lane), told_(*context.store, "tcp", context.rank, context.size) {
  for (const int rank : peers) {
    TUTTI_CHECK(rank >= 0 && rank < context.size && rank != context.rank);
    peers_.push_back(std::make_unique<Peer>(rank, io_));
  }
}

std::map<int, Descriptor> Connector::run() {
  try {
    publish_address();
    for (auto& peer : peers_) look_up(*peer);
    open_gate();
    for (auto& peer : peers_)
      if (peer->rank < context_.rank) call(*peer);
    watch_for_failures();
    while (!complete() && !failure_) {
      if (context_.deadline.passed()) throw missing_error();
      io_.run_one_until(context_.deadline.when());
    }
    if (failure_) std::rethrow_exception(failure_);
  } catch (const Error& error) {
    // The other ranks read this failure in the store, so they need not wait for their deadlines. A
    // timeout is not reported, because every rank reaches its own deadline.
    if (error.code() != ErrorCode::timeout) told_.fail(error);
    throw;
  }
  gate_->close();
  std::map<int, Descriptor> sockets;
  const auto& congestion = context_.setting("TUTTI_TCP_CONGESTION");
  for (auto& peer : peers_) {
    choose_congestion(peer->socket->native_handle(), congestion);
    sockets[peer->rank] = Descriptor(peer->socket->release());
  }
  return sockets;
}

void Connector::publish_address() {
  check_congestion(context_.setting("TUTTI_TCP_CONGESTION"));
  scope_ = agree_on_scope(*context_.store, lane_);
  const auto address = choose_address(context_, interface_addresses());
  acceptor_ = listen_on(io_, {address, 0});
  own_endpoint_ = acceptor_.local_endpoint();
  context_.store->set(address_key(lane_, context_.rank),
                      fmt::format("{} {}", address.to_string(), own_endpoint_.port()));
}

void Connector::look_up(Peer& peer) {
  const auto text = wait_for_address(peer);
  const auto words = split_text(text, ' ');
  ErrorStatus status;
  const auto address = asio::ip::make_address(words.front(), status);
  const auto port = parse_integer(words.back(), 1, 65535);
  if (status || !port)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the store says that rank {} listens on \"{:.60}\", expected an "
                            "address and a port",
                            peer.rank, text))
        .with_rank(peer.rank);
  peer.endpoint = {address, static_cast<uint16_t>(*port)};
  peer.seen = fmt::format("nothing came from {}", name(peer));
}

std::string Connector::wait_for_address(const Peer& peer) {
  while (true) {
    try {
      return context_.store->get(address_key(lane_, peer.rank),
                                 earlier(context_.deadline, Deadline::after(0.2)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
    }
    if (!context_.deadline.passed()) {
      told_.look();
      continue;
    }
    // The address may have arrived since the last check.
    if (auto address = context_.store->try_get(address_key(lane_, peer.rank))) return *address;
    std::vector<int> missing{peer.rank};
    for (const auto& other : peers_)
      if (other->rank != peer.rank && !context_.store->try_get(address_key(lane_, other->rank)))
        missing.push_back(other->rank);
    std::sort(missing.begin(), missing.end());
    throw Error(ErrorCode::timeout,
                fmt::format("rank {} waited without success for {} to announce a TCP address; "
                            "check that every rank was started and uses the same store and backend",
                            context_.rank, format_rank_set(missing)))
        .with_rank(missing.front());
  }
}

void Connector::open_gate() {
  gate_ = std::make_shared<Gate>(
      std::move(acceptor_), terms(-1, {}), fmt::format("rank {}", context_.rank), context_.log,
      [this](tcp::socket socket, int rank) { welcome(std::move(socket), rank); },
      [this](const std::exception_ptr& error, int rank) { turn_away(error, rank); });
  gate_->open();
}

void Connector::welcome(tcp::socket socket, int rank) {
  auto* peer = find(rank);
  // A rank that calls a second time has given up its first connection.
  if (peer && peer->rank > context_.rank) peer->socket = std::move(socket);
}

void Connector::turn_away(const std::exception_ptr& error, int claimed_rank) {
  auto* peer = find(claimed_rank);
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    // An io error without a known peer is a limit of this rank's own system.
    if (peer == nullptr && reason.code() == ErrorCode::io) failure_ = error;
    if (peer != nullptr) peer->seen = reason.what();
  }
}

void Connector::call(Peer& peer) {
  const auto socket = std::make_shared<tcp::socket>(io_);
  ErrorStatus status;
  socket->open(peer.endpoint.protocol(), status);
  if (!status) tune_connection(socket->native_handle());
  if (!status && !context_.network_interface.empty() &&
      peer.endpoint.protocol() == own_endpoint_.protocol())
    // the connection must leave through the wanted interface too
    socket->bind({own_endpoint_.address(), 0}, status);
  if (!limit_advice(status.value()).empty() && status != asio::error::try_again) {
    // This is a limit of this rank's own system. Another try cannot succeed.
    failure_ = std::make_exception_ptr(system_error("cannot open a socket", status.value()));
    return;
  }
  if (status) return call_again(peer, status.message());
  socket->async_connect(peer.endpoint, [this, &peer, socket](ErrorStatus status) {
    if (!status) return greet(peer, std::move(*socket));
    const auto now = Clock::now();
    if (status == asio::error::connection_refused) {
      peer.first_refusal = std::min(peer.first_refusal, now);
      if (now - peer.first_refusal >= kRefusalPatience) {
        const Error error(ErrorCode::peer_lost,
                          fmt::format("{} announced its address and refuses connections now; it "
                                      "has probably ended",
                                      name(peer)));
        failure_ = std::make_exception_ptr(Error(error).with_rank(peer.rank));
        return;
      }
    }
    call_again(peer, status.message());
  });
}

void Connector::greet(Peer& peer, tcp::socket socket) {
  async_handshake(std::move(socket),
                  Handshake(HandshakeRole::initiator, terms(peer.rank, name(peer))),
                  earlier(context_.deadline, Deadline::after(kHandshakeSeconds)),
                  [this, &peer](const std::exception_ptr& error, tcp::socket greeted, int) {
                    if (!error) {
                      peer.socket = std::move(greeted);
                      return;
                    }
                    try {
                      std::rethrow_exception(error);
                    } catch (Error& reason) {
                      const bool passing = reason.code() == ErrorCode::timeout ||
                                           reason.code() == ErrorCode::peer_lost;
                      if (passing) return call_again(peer, reason.what());
                      failure_ = std::make_exception_ptr(reason.with_rank(peer.rank));
                    }
                  });
}

void Connector::call_again(Peer& peer, const std::string& seen) {
  peer.seen = fmt::format("{}: {}", name(peer), seen);
  peer.retry.expires_after(kRetryPause);
  peer.retry.async_wait([this, &peer](ErrorStatus status) {
    if (!status) call(peer);
  });
}

void Connector::watch_for_failures() {
  failure_check_.expires_after(kFailureCheck);
  failure_check_.async_wait([this](ErrorStatus status) {
    if (status) return;
    told_.look();
    watch_for_failures();
  });
}

Connector::Peer* Connector::find(int rank) {
  for (auto& peer : peers_)
    if (peer->rank == rank) return peer.get();
  return nullptr;
}

bool Connector::complete() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->socket.has_value(); });
}

Error Connector::missing_error() const {
  std::vector<int> ranks;
  std::string seen;
  for (const auto& peer : peers_) {
    if (peer->socket) continue;
    ranks.push_back(peer->rank);
    seen += (seen.empty() ? "" : "; ") + peer->seen;
  }
  std::sort(ranks.begin(), ranks.end());
  return Error(ErrorCode::timeout,
               fmt::format("rank {} at {} has no connection with {} at the deadline ({}); check "
                           "that the ranks run and that no firewall stands between them",
                           context_.rank, to_text(own_endpoint_), format_rank_set(ranks), seen))
      .with_rank(ranks.front());
}

}  // namespace

std::map<int, Descriptor> connect_peers(const Context& context, std::span<const int> peers,
                                        int lane) {
  if (peers.empty()) return {};
  return Connector(context, peers, lane).run();
}

}  // namespace tutti
