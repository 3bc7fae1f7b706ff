#include "tutti/backends/handshake/handshake_session.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>

#include "tutti/backends/network/sockets.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

class HandshakeSession : public Stranger, public std::enable_shared_from_this<HandshakeSession> {
 public:
  HandshakeSession(tcp::socket socket, Handshake handshake, HandshakeResult result)
      : socket_(std::move(socket)),
        handshake_(std::move(handshake)),
        result_(std::move(result)),
        timer_(socket_.get_executor()) {}

  void start(Deadline deadline) {
    timer_.expires_at(deadline.when());
    timer_.async_wait([self = shared_from_this()](ErrorStatus status) {
      if (!status) self->fail({ErrorCode::timeout, self->silence()});
    });
    step();
  }

  const std::string& name() const override { return handshake_.peer_name(); }
  bool has_spoken() override { return heard_ || has_input(socket_.native_handle()); }
  void dismiss() override {
    end();
    result_ = nullptr;
  }

 private:
  // Sends before it reads, because the first frame of each side needs nothing from the other side.
  void step() {
    if (!handshake_.output().empty()) {
      asio::async_write(socket_, asio::buffer(handshake_.output()),
                        [self = shared_from_this()](ErrorStatus status, size_t bytes) {
                          if (!self->result_) return;
                          // A peer that refused this side may have closed the connection already,
                          // but its reason can still be read. So a failed write is not an error
                          // here. The next read reports the cause.
                          self->handshake_.sent(status ? self->handshake_.output().size() : bytes);
                          self->step();
                        });
    } else if (handshake_.wanted() > 0) {
      asio::async_read(socket_, asio::buffer(input_.data(), handshake_.wanted()),
                       [self = shared_from_this()](ErrorStatus status, size_t bytes) {
                         if (self->result_) self->take(status, bytes);
                       });
    } else {
      timer_.cancel();
      std::exchange(result_, nullptr)(nullptr, std::move(socket_), handshake_.peer());
    }
  }

  void take(ErrorStatus status, size_t bytes) {
    if (status)
      return fail(
          {ErrorCode::peer_lost, fmt::format("{} ended the connection during the handshake ({})",
                                             handshake_.peer_name(), status.message())});
    heard_ = true;
    try {
      handshake_.received({input_.data(), bytes});
    } catch (const Error& error) {
      say_goodbye();
      return fail(error);
    }
    step();
  }

  // Sends the reason of a refusal to the other side, if the connection takes it immediately. Then
  // reads what the peer has sent. Otherwise closing could reset the connection before the reason
  // has arrived.
  void say_goodbye() {
    const auto output = handshake_.output();
    const int fd = socket_.native_handle();
    (void)!::send(fd, output.data(), output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    for (int i = 0; i < 4 && ::recv(fd, input_.data(), input_.size(), MSG_DONTWAIT) > 0; ++i) {
    }
  }

  void fail(const Error& error) {
    if (!result_) return;
    end();
    std::exchange(result_, nullptr)(std::make_exception_ptr(error), std::move(socket_),
                                    handshake_.peer());
  }

  void end() {
    timer_.cancel();
    ErrorStatus ignored;
    socket_.close(ignored);
  }

  std::string silence() const {
    return fmt::format("{} did not finish the handshake in time", handshake_.peer_name());
  }

  tcp::socket socket_;
  Handshake handshake_;
  HandshakeResult result_;
  asio::steady_timer timer_;
  std::array<char, 256> input_;
  bool heard_ = false;
};

}  // namespace

std::shared_ptr<Stranger> async_handshake(tcp::socket socket, Handshake handshake,
                                          Deadline deadline, HandshakeResult result) {
  auto session = std::make_shared<HandshakeSession>(std::move(socket), std::move(handshake),
                                                    std::move(result));
  session->start(deadline);
  return session;
}

Gate::Gate(tcp::acceptor acceptor, HandshakeTerms terms, const std::string& keeper, LogSink log,
           Welcome welcome, TurnAway turn_away)
    : acceptor_(std::move(acceptor)),
      pause_(acceptor_.get_executor()),
      terms_(std::move(terms)),
      welcome_(std::move(welcome)),
      turn_away_(std::move(turn_away)),
      admission_(fmt::format("{} at {}", keeper, to_text(acceptor_.local_endpoint())),
                 std::move(log)) {}

void Gate::open() {
  if (waiting_ || !acceptor_.is_open()) return;
  const auto now = Clock::now();
  const auto opening = admission_.next_opening(now);
  if (opening > now) return open_at(opening);
  waiting_ = true;
  acceptor_.async_wait(tcp::acceptor::wait_read, [self = shared_from_this()](ErrorStatus status) {
    self->waiting_ = false;
    if (!status) self->accept();
  });
}

void Gate::open_at(Clock::time_point when) {
  waiting_ = true;
  pause_.expires_at(when);
  pause_.async_wait([self = shared_from_this()](ErrorStatus cancelled) {
    self->waiting_ = false;
    if (!cancelled) self->open();
  });
}

void Gate::close() {
  ErrorStatus ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void Gate::accept() {
  if (!acceptor_.is_open()) return;
  ErrorStatus status;
  auto socket = accept_waiting(acceptor_, status);
  if (!status) greet(std::move(socket));
  // If accepting failed for lack of descriptors or memory, the connection stays in the kernel's
  // queue. Another try now would fail too, unless a dismissed stranger frees a descriptor.
  if (!status || is_harmless_accept_error(status) || admission_.make_room(Clock::now())) {
    open();
  } else {
    if (turn_away_)
      turn_away_(
          std::make_exception_ptr(system_error("cannot accept a connection", status.value())), -1);
    if (acceptor_.is_open()) open_at(Clock::now() + std::chrono::milliseconds(100));
  }
}

void Gate::greet(tcp::socket socket) {
  ErrorStatus status;
  const auto from = socket.remote_endpoint(status);
  if (status) return;  // the connection has already ended
  auto terms = terms_;
  terms.peer_name = fmt::format("the connection from {}", to_text(from));
  const auto greet = [&](uint64_t place) {
    return async_handshake(std::move(socket), Handshake(HandshakeRole::acceptor, std::move(terms)),
                           Deadline::after(kHandshakeSeconds),
                           [self = shared_from_this(), place](const std::exception_ptr& error,
                                                              tcp::socket socket, int peer) {
                             self->admission_.leave(place);
                             if (!self->acceptor_.is_open()) return;
                             if (error)
                               self->turn_away(error, peer);
                             else
                               self->welcome_(std::move(socket), peer);
                           });
  };
  admission_.enter(greet, Clock::now());
}

void Gate::turn_away(const std::exception_ptr& error, int claimed_peer) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    const bool silent = reason.code() == ErrorCode::timeout;
    admission_.turned_away(silent ? Admission::Reason::silent : Admission::Reason::unproved,
                           reason.what(), Clock::now());
  }
  if (turn_away_) turn_away_(error, claimed_peer);
}

}  // namespace tutti
