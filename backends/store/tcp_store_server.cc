
#include <csignal>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "tutti/backends/handshake/handshake_session.h"
#include "tutti/backends/network/asio.h"
#include "tutti/backends/network/sockets.h"
#include "tutti/backends/store.h"
#include "tutti/backends/store/tcp_store_caller.h"
#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/backends/store/tcp_store_table.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

// If a client exceeds one of these bounds, the server does not read from it until it has taken
// replies.
constexpr size_t kMaxUnsentBytes = 4 << 20;
constexpr int kMaxOpenRequests = 1024;

// The connection of one client that has proved itself. Its pending reads and writes keep it alive.
class StoreConnection : public std::enable_shared_from_this<StoreConnection> {
 public:
  StoreConnection(tcp::socket socket, StoreTable& table)
      : socket_(std::move(socket)), table_(table) {}

  void read() {
    if (reading_ || !socket_.is_open()) return;
    if (unsent_bytes_ > kMaxUnsentBytes || open_requests_ >= kMaxOpenRequests) return;
    reading_ = true;
    input_.resize(kStoreFrameHeader);
    asio::async_read(socket_, asio::buffer(input_),
                     [self = shared_from_this()](ErrorStatus status, size_t) {
                       self->guard(status, [&] { self->read_body(); });
                     });
  }

 private:
  void read_body() {
    input_.resize(decode_frame_length(input_));
    asio::async_read(socket_, asio::buffer(input_),
                     [self = shared_from_this()](ErrorStatus status, size_t) {
                       self->guard(status, [&] {
                         self->reading_ = false;
                         self->handle(decode_request(self->input_));
                         self->read();
                       });
                     });
  }

  void handle(StoreRequest request) {
    ++open_requests_;
    table_.handle(this, std::move(request), [weak = weak_from_this()](StoreReply reply) {
      if (const auto self = weak.lock()) self->answer(reply);
    });
  }

  void answer(const StoreReply& reply) {
    --open_requests_;
    output_.push_back(encode(reply));
    unsent_bytes_ += output_.back().size();
    if (output_.size() == 1) write();
  }

  void write() {
    asio::async_write(socket_, asio::buffer(output_.front()),
                      [self = shared_from_this()](ErrorStatus status, size_t) {
                        self->guard(status, [&] {
                          self->unsent_bytes_ -= self->output_.front().size();
                          self->output_.pop_front();
                          if (!self->output_.empty()) self->write();
                          self->read();
                        });
                      });
  }

  // Calls the function. Drops the client if it has left. Also drops it if the function throws,
  // because the client then sent something that is not a request. Other clients are not
  // affected.
  template <typename Function>
  void guard(const ErrorStatus& status, Function function) {
    bool drop = static_cast<bool>(status);
    try {
      if (!drop) function();
    } catch (const std::exception&) {
      drop = true;
    }
    if (!drop) return;
    table_.forget(this);
    ErrorStatus ignored;
    socket_.close(ignored);
  }

  tcp::socket socket_;
  StoreTable& table_;
  std::string input_;
  std::deque<std::string> output_;
  size_t unsent_bytes_ = 0;
  int open_requests_ = 0;
  bool reading_ = false;
};

// The objects that the server's thread uses. Destroying them closes every connection.
struct Service {
  asio::io_context io{1};
  StoreTable table{io};
  std::shared_ptr<Gate> gate;
};

// The state that the server and its local views share. The views may outlive the server.
struct Core {
  std::mutex mutex;
  std::unique_ptr<Service> service;  // null if the server was closed
};

// A Store that passes requests to the server's thread and waits for the replies.
class LocalStore : public StoreCaller {
 public:
  LocalStore(std::shared_ptr<Core> core, std::string address)
      : core_(std::move(core)), address_(std::move(address)) {}
  std::string local_address() const override { return address_; }

 private:
  StoreReply call(StoreRequest request, Deadline) override {
    encode(request);  // checks the bounds, as for a request over a connection
    auto promise = std::make_shared<std::promise<StoreReply>>();
    auto reply = promise->get_future();
    {
      const std::lock_guard lock(core_->mutex);
      if (!core_->service) throw closed();
      asio::post(core_->service->io, [&table = core_->service->table, client = this,
                                      promise = std::move(promise),
                                      request = std::move(request)]() mutable {
        table.handle(client, std::move(request), [promise = std::move(promise)](StoreReply answer) {
          promise->set_value(std::move(answer));
        });
      });
    }
    try {
      return reply.get();
    } catch (const std::future_error&) {
      throw closed();  // the server was closed before it answered
    }
  }

  static Error closed() { return {ErrorCode::unavailable, "the store's server has been closed"}; }

  const std::shared_ptr<Core> core_;
  const std::string address_;
};

}  // namespace

class TcpStoreServer::Implementation {
 public:
  Implementation(const std::string& address, int port, std::string secret, LogSink log) {
    auto service = std::make_unique<Service>();
    auto acceptor = listen_on(service->io, resolve(service->io, address, port).front());
    endpoint_ = acceptor.local_endpoint();
    HandshakeTerms terms{
        .secret = std::move(secret), .scope = std::string(kTcpStoreScope), .peer_name = {}};
    service->gate = std::make_shared<Gate>(
        std::move(acceptor), std::move(terms), "the store", std::move(log),
        [&table = service->table](tcp::socket socket, int) {
          std::make_shared<StoreConnection>(std::move(socket), table)->read();
        },
        nullptr);
    service->gate->open();
    core_->service = std::move(service);
    start_thread();
  }

  ~Implementation() {
    core_->service->io.stop();
    thread_.join();
    const std::lock_guard lock(core_->mutex);
    core_->service.reset();
  }

  int port() const { return endpoint_.port(); }
  void report_strangers() {
    std::promise<void> told;
    asio::post(core_->service->io, [&] {
      core_->service->gate->report();
      told.set_value();
    });
    told.get_future().wait();  // the server's thread is never busy for long
  }
  std::shared_ptr<Store> local() {
    // If the server listens on all addresses, there is no single address to report.
    const auto address = endpoint_.address();
    return std::make_shared<LocalStore>(core_, address.is_unspecified() ? "" : address.to_string());
  }

 private:
  // All signals are blocked in the server's thread, so that the program's own threads get them.
  void start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([&io = core_->service->io] { io.run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  const std::shared_ptr<Core> core_ = std::make_shared<Core>();
  tcp::endpoint endpoint_;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& address, int port, std::string secret,
                               LogSink log)
    : implementation_(new Implementation(address, port, std::move(secret), std::move(log))) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return implementation_->port(); }
void TcpStoreServer::report_strangers() {
  if (!implementation_.get_deleter().made.forked()) implementation_->report_strangers();
}
std::shared_ptr<Store> TcpStoreServer::local() { return implementation_->local(); }

}  // namespace tutti
