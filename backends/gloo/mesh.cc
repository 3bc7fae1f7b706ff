#include "tutti/backends/gloo/mesh.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>

#include "tutti/backends/gloo/signals.h"
#include "tutti/backends/network/network_interface.h"
#include "tutti/backends/network/sockets.h"
#include "tutti/backends/store/told_failure.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

// Gloo's timeout. The library decides whether a rank is late or lost, so Gloo must not time out
// first. Gloo multiplies this value by five in one place.
constexpr std::chrono::milliseconds kBackstop = std::chrono::hours(24);

using Bytes = std::vector<char>;

std::string key(int rank) { return fmt::format("gloo/{}", rank); }
constexpr char kNoAddress = '\xff';  // the store then holds a reason instead of addresses

// Encodes the addresses on which a rank awaits the other ranks. Each address is its length in one
// byte, followed by its bytes.
std::string join_addresses(const std::vector<Bytes>& addresses) {
  std::string text;
  for (const auto& bytes : addresses) {
    text += static_cast<char>(static_cast<unsigned char>(bytes.size()));
    text.append(bytes.begin(), bytes.end());
  }
  return text;
}

Bytes address_for(const std::string& text, int rank) {
  if (text.starts_with(kNoAddress)) throw Error(ErrorCode::unavailable, text.substr(1));
  size_t at = 0;
  for (int i = 0; at < text.size(); ++i) {
    const size_t size = static_cast<unsigned char>(text[at++]);
    if (size > text.size() - at) break;
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    if (i == rank) return {begin, begin + static_cast<std::ptrdiff_t>(size)};
    at += size;
  }
  throw Error(ErrorCode::corrupt_data, "a rank left no address of Gloo in the store");
}

// Returns the port and the address from a sockaddr_storage, or an empty text if it holds no
// internet address. The other bytes have no meaning on another host.
std::string place_in(const void* bytes, size_t size) {
  sockaddr_storage storage{};
  std::memcpy(&storage, bytes, std::min(size, sizeof storage));
  const auto place = [&](size_t port, size_t address, size_t length) {
    const auto* begin = reinterpret_cast<const char*>(&storage);
    return std::string(begin + port, sizeof(in_port_t)) + std::string(begin + address, length);
  };
  if (storage.ss_family == AF_INET)
    return place(offsetof(sockaddr_in, sin_port), offsetof(sockaddr_in, sin_addr), sizeof(in_addr));
  if (storage.ss_family == AF_INET6)
    return place(offsetof(sockaddr_in6, sin6_port), offsetof(sockaddr_in6, sin6_addr),
                 sizeof(in6_addr));
  return {};
}

std::string place_in(const Bytes& address) { return place_in(address.data(), address.size()); }

using NameCall = int (*)(int, sockaddr*, socklen_t*);

// Returns the address of one end of a connection; empty if it has none.
std::string end_of(int descriptor, NameCall name) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (name(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return place_in(&address, length);
}

}  // namespace

GlooMesh::GlooMesh(int rank, int size)
    : gloo::Context(rank, size), sockets_(static_cast<size_t>(size)) {
  setTimeout(kBackstop);
}

GlooMesh::~GlooMesh() {
  // Gloo would reset its connections, which drops data that is on its way. So its own descriptors
  // are closed first. Our duplicates are then the last descriptors and close the connections in
  // order.
  watched_.reset();
  transportContext_.reset();
  device_.reset();
  constexpr linger kInOrder{0, 0};
  for (const auto& socket : sockets_)
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &kInOrder, sizeof kInOrder);
}

std::shared_ptr<GlooMesh> GlooMesh::connect(const tutti::Context& context) {
  std::shared_ptr<GlooMesh> mesh(new GlooMesh(context.rank, context.size));
  try {
    mesh->listen(context);
  } catch (const Error& error) {
    // The other ranks wait for these addresses, and read the reason instead.
    context.store->set(key(context.rank), kNoAddress + std::string(error.what()));
    throw;
  }
  mesh->connect_all(context);
  return mesh;
}

void GlooMesh::listen(const tutti::Context& context) {
  try {
    address_ = choose_address(context, interface_addresses()).to_string();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("rank {}: {}", rank, error.what())).with_rank(rank);
  }
  check_congestion(context.setting("TUTTI_TCP_CONGESTION"));
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address_;
  attributes.ai_family = address_.find(':') == address_.npos ? AF_INET : AF_INET6;
  // Gloo's own thread inherits the signal mask of this thread.
  const BrokenPipesIgnored ignored;
  try {
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    auto inner = device_->createContext(rank, size);
    inner->setTimeout(kBackstop);
    watched_ = std::make_shared<WatchedTransport>(std::move(inner));
    transportContext_ = watched_;
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) transportContext_->createPair(peer);
  } catch (const gloo::Exception& error) {
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {}: Gloo cannot listen on {}: {}; set TUTTI_INTERFACE to another "
                            "interface",
                            rank, address_, error.what()))
        .with_rank(rank);
  }
}

// Connects to all ranks. Gloo's connect() blocks. So another thread runs it, while this thread
// watches the deadline and the other ranks.
void GlooMesh::connect_all(const tutti::Context& context) {
  std::vector<Bytes> own(static_cast<size_t>(size)), theirs(static_cast<size_t>(size));
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) own[static_cast<size_t>(peer)] = getPair(peer)->address().bytes();
  context.store->set(key(rank), join_addresses(own));
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank)
      theirs[static_cast<size_t>(peer)] =
          address_for(context.store->get(key(peer), context.deadline), rank);
  const ToldFailure told(*context.store, "gloo", rank, size);
  auto connecting = std::async(std::launch::async, [&] {
    const BrokenPipesIgnored ignored;
    // All ranks connect in ascending order. So the two lowest ranks that are not connected yet can
    // always connect to each other.
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) getPair(peer)->connect(theirs[static_cast<size_t>(peer)]);
  });
  try {
    while (connecting.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
      if (context.deadline.passed())
        throw Error(ErrorCode::timeout,
                    fmt::format("rank {} waited without success for Gloo's connections to all "
                                "ranks; check that TUTTI_INTERFACE names a network that they share",
                                rank));
      told.look();
    }
    connecting.get();
    find_sockets(own, theirs);
    const auto& congestion = context.setting("TUTTI_TCP_CONGESTION");
    for (const auto& socket : sockets_)
      if (socket) choose_congestion(socket.get(), congestion);
  } catch (const gloo::Exception& error) {
    const auto failure = Error(
        ErrorCode::unavailable,
        fmt::format("rank {} cannot reach another rank through Gloo: {}", rank, error.what()));
    told.fail(failure);
    throw Error(failure);
  } catch (...) {
    // Closing a pair wakes the thread that waits in connect().
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) getPair(peer)->close();
    throw;
  }
}

// Finds this process's descriptors of Gloo's connections and duplicates them. A descriptor is
// recognized by its addresses. If this rank accepted the connection, its own address is the one in
// `own`, which no other connection of this host has. If this rank opened the connection, its port
// may also be used by connections to other addresses, such as the store's. So in that case both
// addresses are compared.
void GlooMesh::find_sockets(const std::vector<Bytes>& own, const std::vector<Bytes>& theirs) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const auto number = parse_integer(entry.path().filename().string(), 0, 1 << 30);
    const int fd = static_cast<int>(number.value_or(-1));
    const auto here = end_of(fd, ::getsockname), there = end_of(fd, ::getpeername);
    if (here.empty() || there.empty()) continue;
    for (int peer = 0; peer < size; ++peer) {
      auto& socket = sockets_[static_cast<size_t>(peer)];
      if (peer == rank || socket) continue;
      const auto place = place_in(getPair(peer)->address().bytes());
      const bool was_called = place == place_in(own[static_cast<size_t>(peer)]);
      if (here == place && (was_called || there == place_in(theirs[static_cast<size_t>(peer)])))
        socket.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto& socket = sockets_[static_cast<size_t>(peer)];
    if (!socket)
      throw Error(ErrorCode::internal,
                  fmt::format("rank {} does not find the socket of Gloo's connection to rank {}",
                              rank, peer));
    tune_connection(socket.get());
  }
}

void GlooMesh::close() noexcept {
  for (const auto& socket : sockets_)
    if (socket) ::shutdown(socket.get(), SHUT_RDWR);
  if (watched_) watched_->end_waits();
}

}  // namespace tutti
