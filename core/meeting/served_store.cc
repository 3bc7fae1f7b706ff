#include "tutti/core/meeting/served_store.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <map>
#include <mutex>
#include <utility>

#include "tutti/base/process/fork_guard.h"

namespace tutti {

namespace {

// Passes the server's log lines to the log sink of the latest communicator while that communicator
// lives. Afterwards they go to standard error, because objects that the program's sink uses may be
// gone.
class Listeners : public std::enable_shared_from_this<Listeners> {
 public:
  void tell(LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex_);
    sink_(level, line);
  }
  std::shared_ptr<void> listen(LogLevel limit, LogSink sink) {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
    sink_ = log_up_to(limit, std::move(sink));
    return {this, [self = shared_from_this(), own = ++last_](void*) { self->leave(own); }};
  }

 private:
  void leave(uint64_t own) {
    const std::lock_guard lock(mutex_);
    if (own == last_) sink_ = log_up_to(limit_, nullptr);
  }

  std::mutex mutex_;  // guards the members below and the calls of sink_
  LogSink sink_;
  LogLevel limit_ = LogLevel::warning;
  uint64_t last_ = 0;
};

struct Server {
  ForkGuard made;
  std::shared_ptr<Listeners> listeners = std::make_shared<Listeners>();
  std::shared_ptr<TcpStoreServer> server;
};

struct Servers {
  std::mutex mutex;
  std::map<std::string, Server> by_address;  // guarded by mutex

  // OpenSSL cleans up at exit. Because it is initialized here, before the servers, it cleans up
  // after the servers are destroyed.
  Servers() { ::OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr); }
};

}  // namespace

ServedStore serve_store(const Options& options, const std::string& host, int port) {
  static Servers servers;
  const std::lock_guard lock(servers.mutex);
  auto& entry = servers.by_address[fmt::format("{} {} {}", host, port, options.secret)];
  if (entry.made.forked()) entry = Server();  // in a fork: the parent process serves that store
  auto listener = entry.listeners->listen(options.log_level, options.log);
  if (!entry.server)
    entry.server = std::make_shared<TcpStoreServer>(
        host, port, options.secret,
        [to = entry.listeners](LogLevel level, std::string_view line) { to->tell(level, line); });
  // Before the listener is removed, it receives the log lines that are still pending.
  void* const own = listener.get();
  return {
      entry.server->local(),
      {own, [listener = std::move(listener), server = std::weak_ptr(entry.server)](void*) mutable {
         if (const auto alive = server.lock()) alive->report_strangers();
         listener.reset();
       }}};
}

}  // namespace tutti
