#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "tutti/backends/handshake/handshake_session.h"
#include "tutti/backends/network/asio.h"
#include "tutti/backends/network/sockets.h"
#include "tutti/backends/store.h"
#include "tutti/backends/store/tcp_store_caller.h"
#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/base/process/limits.h"

namespace tutti {

namespace {

// After its deadline a call still waits kGrace for the server before the server counts as gone.
// With a limit (LimitedStoreClient) the call waits at most kGraceAtLimit after the limit.
//
// A live server answers immediately. So a short question at the limit, such as which ranks are
// missing, still gets its answer. And a key that never came is not mistaken for a server that is
// gone.
constexpr std::chrono::milliseconds kGrace(5000), kGraceAtLimit(500);

Deadline later(Deadline deadline, Clock::duration by) {
  return deadline.is_never() ? deadline : Deadline::at(deadline.when() + by);
}

class TcpStoreClient;

// Uses the connection of a TcpStoreClient for calls that must all end by one deadline.
class LimitedStoreClient final : public StoreCaller {
 public:
  LimitedStoreClient(std::shared_ptr<TcpStoreClient> client, Deadline limit);
  std::shared_ptr<Store> until(Deadline deadline) override {
    return std::make_shared<LimitedStoreClient>(client_, earlier(deadline, limit_));
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return StoreCaller::get(key, earlier(deadline, limit_));
  }
  std::string local_address() const override;

 private:
  static Deadline earlier(Deadline one, Deadline other) {
    return one.when() < other.when() ? one : other;
  }
  StoreReply call(StoreRequest request, Deadline deadline) override;

  const std::shared_ptr<TcpStoreClient> client_;
  const Deadline limit_;
};

// A connection that all threads of the process share. Requests are written one after another. One
// of the threads that wait for a reply reads the replies for all of them.
class TcpStoreClient : public StoreCaller, public std::enable_shared_from_this<TcpStoreClient> {
 public:
  TcpStoreClient(Descriptor socket, std::string name, std::string local_address)
      : socket_(std::move(socket)),
        name_(std::move(name)),
        local_address_(std::move(local_address)) {}

  std::shared_ptr<Store> until(Deadline deadline) override {
    return std::make_shared<LimitedStoreClient>(shared_from_this(), deadline);
  }
  std::string local_address() const override { return local_address_; }

  /// Sends the request and waits for the reply until `patience` ends.
  StoreReply ask_within(StoreRequest request, Deadline patience) {
    std::unique_lock lock(mutex_);
    const auto id = request.id = ++last_id_;
    const auto frame = encode(request);
    const auto reply = replies_.try_emplace(id).first;
    try {
      send(frame, lock, patience);
      wait_for(reply->second, lock, patience);
    } catch (...) {
      replies_.erase(reply);
      throw;
    }
    auto result = std::move(*reply->second);
    replies_.erase(reply);
    return result;
  }

 private:
  StoreReply call(StoreRequest request, Deadline deadline) override {
    return ask_within(std::move(request), later(deadline, kGrace));
  }

  // Waits for this thread's turn, so that requests do not mix, and writes the frame.
  void send(std::string_view frame, std::unique_lock<std::mutex>& lock, Deadline deadline) {
    while (is_sending_) wait(turn_, lock, deadline, "it takes no more requests");
    if (!failure_.empty()) throw gone(failure_);
    is_sending_ = true;
    lock.unlock();
    std::string_view rest = frame;
    const auto failure = send_some(rest, deadline);
    lock.lock();
    is_sending_ = false;
    turn_.notify_all();
    if (failure.empty()) return;
    // If only a part of a request was written, no other request can follow it. So the connection is
    // broken.
    if (rest.size() < frame.size() && failure_.empty()) failure_ = failure;
    changed_.notify_all();
    throw gone(failure);
  }

  // Called without the lock by the thread whose turn it is. Removes from `rest` the bytes that the
  // kernel took. Returns why it did not take all of them, or an empty text if it did.
  std::string send_some(std::string_view& rest, Deadline deadline) const {
    while (!rest.empty()) {
      const auto sent =
          ::send(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) {
        rest.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        if (!wait_until_ready(POLLOUT, deadline)) return "it takes no more requests";
      } else if (errno != EINTR) {
        return std::strerror(errno);
      }
    }
    return {};
  }

  // Waits until another thread notifies `news`. At the deadline throws an error with the text
  // `at_deadline`.
  void wait(std::condition_variable& news, std::unique_lock<std::mutex>& lock, Deadline deadline,
            const char* at_deadline) const {
    if (deadline.passed()) throw gone(at_deadline);
    if (deadline.is_never())
      news.wait(lock);
    else
      news.wait_until(lock, deadline.when());
  }

  void wait_for(std::optional<StoreReply>& reply, std::unique_lock<std::mutex>& lock,
                Deadline deadline) {
    while (!reply) {
      if (!failure_.empty()) throw gone(failure_);
      if (has_reader_) {
        wait(changed_, lock, deadline, "it does not answer");
        continue;
      }
      if (deadline.passed()) throw gone("it does not answer");
      has_reader_ = true;
      lock.unlock();
      std::string failure;
      try {
        read_some(deadline);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      lock.lock();
      has_reader_ = false;
      if (!failure.empty()) failure_ = failure;
      deliver();
      changed_.notify_all();
    }
  }

  // Called without the lock by the one thread that reads. Also returns at the deadline.
  void read_some(Deadline deadline) {
    if (!wait_until_ready(POLLIN, deadline)) return;
    std::array<char, 65536> bytes;
    const auto count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      input_.append(bytes.data(), static_cast<size_t>(count));
    } else if (count == 0) {
      throw Error(ErrorCode::unavailable, "it closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      throw Error(ErrorCode::unavailable, std::strerror(errno));
    }
  }

  // Hands the complete replies to the threads that wait for them. If no thread waits for a reply,
  // it is dropped.
  void deliver() {
    std::string_view rest = input_;
    try {
      while (rest.size() >= kStoreFrameHeader) {
        const auto length = decode_frame_length(rest);
        if (rest.size() < kStoreFrameHeader + length) break;
        auto reply = decode_reply(rest.substr(kStoreFrameHeader, length));
        const auto found = replies_.find(reply.id);
        if (found != replies_.end()) found->second = std::move(reply);
        rest.remove_prefix(kStoreFrameHeader + length);
      }
    } catch (const Error& error) {
      failure_ = error.what();
    }
    input_.erase(0, input_.size() - rest.size());
  }

  // Waits for events of the socket. Returns false at the deadline or if poll() fails.
  bool wait_until_ready(short events, Deadline deadline) const {
    pollfd entry{socket_.get(), events, 0};
    while (true) {
      const int ready = ::poll(&entry, 1, deadline.poll_milliseconds());
      if (ready >= 0 || errno != EINTR) return ready > 0;
    }
  }

  Error gone(const std::string& reason) const {
    return {ErrorCode::unavailable,
            fmt::format("lost the store at {}: {}; the launcher (or rank 0) that held it has "
                        "probably ended",
                        name_, reason)};
  }

  const Descriptor socket_;
  const std::string name_;
  const std::string local_address_;

  std::mutex mutex_;              // guards the members below
  std::condition_variable turn_;  // woken when a thread may send
  // woken by replies, by a failure, and when the reading thread stops
  std::condition_variable changed_;
  // by request id: the replies for which threads wait
  std::map<uint64_t, std::optional<StoreReply>> replies_;
  uint64_t last_id_ = 0;
  bool is_sending_ = false;
  bool has_reader_ = false;
  std::string failure_;  // the first failure; it stays
  std::string input_;    // the reading thread uses it; mutex_ guards it when no thread reads
};

// The copied base class remembers the process that made the connection. So calls in a fork are
// noticed.
LimitedStoreClient::LimitedStoreClient(std::shared_ptr<TcpStoreClient> client, Deadline limit)
    : StoreCaller(*client), client_(std::move(client)), limit_(limit) {}

std::string LimitedStoreClient::local_address() const { return client_->local_address(); }

StoreReply LimitedStoreClient::call(StoreRequest request, Deadline deadline) {
  const auto end = limit_.passed() ? Deadline::at(Clock::now()) : limit_;
  return client_->ask_within(std::move(request),
                             earlier(later(deadline, kGrace), later(end, kGraceAtLimit)));
}

// An error that comes from a limit of this process. Another try cannot succeed.
class OwnLimit : public Error {
 public:
  OwnLimit(const std::string& name, int error_number)
      : Error(system_error(fmt::format("cannot open a socket to the store at {}", name),
                           error_number)) {}
};

// Connects to the first endpoint that accepts. The remaining time is divided among the endpoints.
// Asio's own connect over several endpoints is not used: it reports "Operation canceled" if a
// socket cannot be opened.
tcp::socket connect_to_one(asio::io_context& io, const std::vector<tcp::endpoint>& endpoints,
                           const std::string& name, Deadline deadline) {
  ErrorStatus status = asio::error::timed_out;
  for (size_t i = 0; i < endpoints.size() && !deadline.passed(); ++i) {
    tcp::socket socket(io);
    socket.open(endpoints[i].protocol(), status);
    if (!limit_advice(status.value()).empty()) throw OwnLimit(name, status.value());
    if (status) continue;  // this host has no such addresses
    tune_connection(socket.native_handle());
    bool done = false;
    socket.async_connect(endpoints[i], [&](ErrorStatus result) {
      status = result;
      done = true;
    });
    const auto now = Clock::now();
    io.restart();
    io.run_until(now + (deadline.when() - now) / static_cast<int>(endpoints.size() - i));
    if (done && !status) return socket;
    if (done) continue;
    ErrorStatus ignored;
    socket.close(ignored);
    io.restart();
    io.run();  // runs the handler of the cancelled connect
    status = asio::error::timed_out;
  }
  throw Error(ErrorCode::io, status.message());
}

// Tries once to resolve the host, connect and prove the secret. Throws the error if that fails.
std::shared_ptr<Store> try_connect(const std::string& host, int port, const std::string& name,
                                   const std::string& secret, Deadline deadline) {
  asio::io_context io(1);
  auto socket = connect_to_one(io, resolve(io, host, port), name, deadline);

  tcp::socket greeted(io);
  std::exception_ptr error;
  HandshakeTerms terms{.secret = secret,
                       .scope = std::string(kTcpStoreScope),
                       .peer_name = fmt::format("the store at {}", name)};
  async_handshake(std::move(socket), Handshake(HandshakeRole::initiator, std::move(terms)),
                  deadline, [&](std::exception_ptr failed, tcp::socket done, int) {
                    error = failed;
                    greeted = std::move(done);
                  });
  io.restart();
  io.run();
  if (error) std::rethrow_exception(error);
  ErrorStatus status;
  const auto local = greeted.local_endpoint(status).address().to_string();
  if (status) throw Error(ErrorCode::io, status.message());
  // In a fork the client is not destroyed, because that could wait for sleeping threads of the
  // parent or send bytes.
  return {new TcpStoreClient(Descriptor(greeted.release()), name, local),
          DeleteWhereMade<TcpStoreClient>()};
}

// Returns whether another try may succeed: no server listens yet, or it was too busy.
bool is_passing(const Error& error) {
  if (dynamic_cast<const OwnLimit*>(&error) != nullptr) return false;
  return error.code() == ErrorCode::io || error.code() == ErrorCode::timeout ||
         error.code() == ErrorCode::peer_lost;
}

}  // namespace

std::shared_ptr<Store> connect_tcp_store(const std::string& host, int port,
                                         const std::string& secret, Deadline deadline) {
  const auto name = host.find(':') == host.npos ? fmt::format("{}:{}", host, port)
                                                : fmt::format("[{}]:{}", host, port);
  const auto begin = Clock::now();
  std::chrono::milliseconds pause(10);
  while (true) {
    const auto one_try = Deadline::after(kHandshakeSeconds);
    try {
      return try_connect(host, port, name, secret,
                         one_try.when() < deadline.when() ? one_try : deadline);
    } catch (const boost::system::system_error& error) {
      throw OwnLimit(name, error.code().value());  // a limit that Asio itself has met
    } catch (const Error& error) {
      if (!is_passing(error)) throw;
      if (!deadline.is_never() && Clock::now() + pause >= deadline.when())
        throw Error(ErrorCode::unavailable,
                    fmt::format("cannot reach the store at {} within {:.1f} s ({}); check that the "
                                "launcher (or rank 0) runs there, and the address and the port",
                                name, std::chrono::duration<double>(Clock::now() - begin).count(),
                                error.what()));
    }
    Clock::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(500));
  }
}

}  // namespace tutti
