#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tutti/backends/backend.h"
#include "tutti/backends/memory/memory_link.h"
#include "tutti/backends/stream/rest_backend.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

// Connects ranks that are threads of one process. The lower rank of a pair makes the link and
// publishes its address in the store. The higher rank takes the link. An address is valid only
// within one process, so a process id and a nonce are published with it.

namespace tutti {

namespace {

// Returns a random number of this process. It is needed because process ids repeat on other hosts
// and in other containers.
uint64_t process_nonce() {
  static const uint64_t nonce = [] {
    uint64_t value = 0;
    if (::getrandom(&value, sizeof value, 0) != sizeof value)
      throw system_error("cannot draw a random number", errno);
    return value;
  }();
  return nonce;
}

using Holder = std::shared_ptr<MemoryLink>;

// One rank's access to the keys of one pair of ranks in the store.
class Meeting {
 public:
  Meeting(Store& store, int low, int high) : store_(store), low_(low), high_(high) {}

  // Two ranks may call this for their pair: the one that takes the published link, and one
  // that gives up waiting. It returns true only to the first of them, which then owns the
  // published Holder.
  bool claim() { return store_.add(key("claim"), 1) == 1; }
  void publish(Holder* holder) {
    synchronize();
    store_.set(key("link"), fmt::format("{} {} {}", ::getpid(), process_nonce(),
                                        reinterpret_cast<uintptr_t>(holder)));
  }
  Holder take(Deadline deadline, const std::shared_ptr<ThreadHeap>& heap) {
    const auto words = split_text(store_.get(key("link"), deadline), ' ');
    synchronize();
    if (words.size() != 3 || words[0] != std::to_string(::getpid()) ||
        words[1] != std::to_string(process_nonce()))
      throw Error(ErrorCode::unavailable,
                  fmt::format("ranks {} and {} run in different processes; backend memory is for "
                              "threads of one process, use shm or tcp",
                              low_, high_))
          .with_rank(low_);
    if (!claim())
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} gave up waiting for rank {}", low_, high_))
          .with_rank(low_);
    const std::unique_ptr<Holder> holder(
        reinterpret_cast<Holder*>(static_cast<uintptr_t>(std::stoull(words[2]))));
    (*holder)->heap[1] = heap;
    synchronize();
    store_.set(key("taken"), "1");
    return std::move(*holder);
  }
  void wait_taken(Deadline deadline) {
    store_.get(key("taken"), deadline);
    synchronize();
  }
  void clean() {
    for (const char* what : {"link", "taken", "claim"}) store_.erase(key(what));
  }

 private:
  // Makes everything that one rank has written to memory visible to another rank. The writer calls
  // this before it sets its key in the store. The reader calls it after it has read that key. It is
  // needed because a store of files orders only accesses to its files.
  static void synchronize() {
    static std::atomic<uint32_t> turns{0};
    turns.fetch_add(1, std::memory_order_acq_rel);
  }

  std::string key(std::string_view what) const {
    return fmt::format("memory/{}/{}-{}", what, low_, high_);
  }

  Store& store_;
  const int low_, high_;
};

[[noreturn]] void throw_missing(const Context& context, const std::vector<int>& missing) {
  throw Error(
      ErrorCode::timeout,
      fmt::format("rank {} waited for {} to connect through memory, without success; did it die?",
                  context.rank, format_rank_set(missing)))
      .with_rank(missing.front());
}

std::vector<std::unique_ptr<Channel>> channels_over(int rank, const std::vector<Holder>& links) {
  std::vector<std::unique_ptr<Channel>> channels(links.size());
  for (size_t peer = 0; peer < links.size(); ++peer)
    if (links[peer])
      channels[peer] =
          std::make_unique<MemoryChannel>(links[peer], static_cast<int>(peer) < rank ? 1 : 0);
  return channels;
}

// Returns a list with one entry per rank: the link to that rank if it is one of `peers`, otherwise
// null. `heap` is the memory that this rank shares, or null.
std::vector<Holder> meet(const Context& context, std::span<const int> peers,
                         const std::shared_ptr<ThreadHeap>& heap) {
  std::vector<Holder> links(static_cast<size_t>(context.size));
  auto& store = *context.store;
  const size_t bytes = ring_bytes_for(context.size);

  // This rank offers all its links before it waits for any. So the ranks may arrive in any order.
  std::vector<std::pair<int, Holder*>> offered;
  for (const int peer : peers) {
    if (peer <= context.rank) continue;
    auto link = std::make_shared<MemoryLink>(bytes);
    link->heap[0] = heap;
    links[static_cast<size_t>(peer)] = link;
    offered.emplace_back(peer, new Holder(std::move(link)));
    Meeting(store, context.rank, peer).publish(offered.back().second);
  }
  const auto take_back = [&] {
    for (const auto& [peer, holder] : offered)
      if (Meeting(store, context.rank, peer).claim()) delete holder;
  };

  try {
    std::vector<int> missing;
    for (const int peer : peers) {
      try {
        if (peer < context.rank)
          links[static_cast<size_t>(peer)] =
              Meeting(store, peer, context.rank).take(context.deadline, heap);
        else if (peer > context.rank)
          Meeting(store, context.rank, peer).wait_taken(context.deadline);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::timeout) throw;
        missing.push_back(peer);
      }
    }
    if (!missing.empty()) throw_missing(context, missing);
  } catch (...) {
    take_back();
    // These channels are closed immediately, which informs the peers that took their links.
    channels_over(context.rank, links);
    throw;
  }
  for (const auto& [peer, holder] : offered) Meeting(store, context.rank, peer).clean();
  return links;
}

std::vector<std::unique_ptr<Channel>> open_memory(const Context& context,
                                                  std::span<const int> peers) {
  return channels_over(context.rank, meet(context, peers, nullptr));
}

std::unique_ptr<Backend> connect_memory(const Context& context) {
  const auto peers = peers_of(context);
  if (peers.empty()) return make_stream_backend(context, "memory", open_memory(context, peers));
  auto heap = std::make_shared<ThreadHeap>();
  auto links = meet(context, peers, heap);
  auto rest = make_stream_backend(context, "memory", channels_over(context.rank, links));
  return make_shared_memory_backend(
      context, std::move(rest),
      make_thread_memory(context.rank, std::move(heap), std::move(links)));
}

}  // namespace

extern const BackendPlugin memory_backend;
const BackendPlugin memory_backend = {
    .name = "memory",
    .summary = "ranks are threads of one process",
    .connect = connect_memory,
    .open = open_memory,
};

}  // namespace tutti
