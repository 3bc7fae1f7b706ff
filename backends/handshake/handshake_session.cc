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

class HandshakeSession : public std::enable_shared_from_this<HandshakeSession> {
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

 private:
  // Sends before it reads: each side's first frame needs nothing from the other.
  void step() {
    if (!handshake_.output().empty()) {
      asio::async_write(socket_, asio::buffer(handshake_.output()),
                        [self = shared_from_this()](ErrorStatus status, size_t bytes) {
                          if (!self->result_) return;
                          // A peer that refused us may have closed already; its reason is still
                          // there to be read, so a failed write is left to the read to explain.
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
    try {
      handshake_.received({input_.data(), bytes});
    } catch (const Error& error) {
      say_goodbye();
      return fail(error);
    }
    step();
  }

  // Tells the other side why, if the connection takes it at once, and reads what it has sent so
  // that closing does not reset the connection before the reason has arrived.
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
    timer_.cancel();
    ErrorStatus ignored;
    socket_.close(ignored);
    std::exchange(result_, nullptr)(std::make_exception_ptr(error), std::move(socket_),
                                    handshake_.peer());
  }

  std::string silence() const {
    return fmt::format("{} did not finish the handshake in time", handshake_.peer_name());
  }

  tcp::socket socket_;
  Handshake handshake_;
  HandshakeResult result_;
  asio::steady_timer timer_;
  std::array<char, 256> input_;
};

}  // namespace

void async_handshake(tcp::socket socket, Handshake handshake, Deadline deadline,
                     HandshakeResult result) {
  std::make_shared<HandshakeSession>(std::move(socket), std::move(handshake), std::move(result))
      ->start(deadline);
}

Gate::Gate(tcp::acceptor acceptor, HandshakeTerms terms, Welcome welcome, TurnAway turn_away)
    : acceptor_(std::move(acceptor)),
      pause_(acceptor_.get_executor()),
      terms_(std::move(terms)),
      welcome_(std::move(welcome)),
      turn_away_(std::move(turn_away)) {}

void Gate::open() {
  if (waiting_ || !acceptor_.is_open() || strangers_ >= kMaxStrangers) return;
  waiting_ = true;
  acceptor_.async_wait(tcp::acceptor::wait_read, [self = shared_from_this()](ErrorStatus status) {
    self->waiting_ = false;
    if (!status) self->accept();
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
  if (!status) {
    greet(std::move(socket));
    open();
  } else if (is_harmless_accept_error(status)) {
    open();
  } else {
    // Out of descriptors or memory: the connection stays in the queue, so asking again at once
    // would spin.
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait([self = shared_from_this()](ErrorStatus cancelled) {
      if (!cancelled) self->open();
    });
  }
}

void Gate::greet(tcp::socket socket) {
  ErrorStatus status;
  const auto from = socket.remote_endpoint(status);
  if (status) return;  // gone already
  auto terms = terms_;
  terms.peer_name = fmt::format("the connection from {}", to_text(from));
  ++strangers_;
  async_handshake(
      std::move(socket), Handshake(HandshakeRole::acceptor, std::move(terms)),
      Deadline::after(kHandshakeSeconds),
      [self = shared_from_this()](std::exception_ptr error, tcp::socket socket, int peer) {
        --self->strangers_;
        if (self->acceptor_.is_open()) {
          if (!error) {
            self->welcome_(std::move(socket), peer);
          } else if (self->turn_away_) {
            self->turn_away_(error, peer);
          }
          self->open();
        }
      });
}

}  // namespace tutti
