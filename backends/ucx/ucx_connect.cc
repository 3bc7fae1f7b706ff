#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tutti/backends/store/told_failure.h"
#include "tutti/backends/stream/frame.h"
#include "tutti/backends/ucx/limits.h"
#include "tutti/backends/ucx/ucx_transport.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

// The functions of UcxTransport for its start and its end.

namespace tutti {

using Type = UcxMessageType;

namespace {

std::string key(int rank) { return fmt::format("ucx/{}", rank); }
constexpr char kNoAddress = '\xff';  // the store then holds a reason instead of an address

// Opens the worker. If that fails, publishes the reason, because the other ranks wait for this
// rank's address.
UcxWorker open_worker(const Context& context) {
  try {
    return UcxWorker(context);
  } catch (const Error& error) {
    context.store->set(key(context.rank), kNoAddress + std::string(error.what()));
    throw;
  }
}

// Returns the name of this process's PID namespace. A process id is valid only within its
// namespace.
std::string process_namespace() {
  std::array<char, 64> name{};
  const auto length = ::readlink("/proc/self/ns/pid", name.data(), name.size());
  return length > 0 ? std::string(name.data(), static_cast<size_t>(length)) : std::string();
}

}  // namespace

UcxTransport::UcxTransport(const Context& context)
    : rank_(context.rank),
      credit_(eager_credit(context.size)),
      transfers_(counters_.allocations),
      arrival_nodes_(counters_.allocations),
      notes_(counters_.allocations),
      buffers_(credit_ * static_cast<uint64_t>(context.size)),
      worker_(open_worker(context)) {
  memory_ = std::make_shared<UcxMemory>(worker_.context());
  make_slots(context.size);
  counters_.bytes_to_peer.assign(static_cast<size_t>(context.size), 0);
  poller_.watch(abort_bell_.descriptor(), EPOLLIN);
  poller_.watch(deaths_.descriptor(), EPOLLIN);
  poller_.watch(worker_.descriptor(), EPOLLIN);
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_) throw system_error("timerfd_create", errno);
  poller_.watch(timer_.get(), EPOLLIN);
  for (int i = 0; i < context.size; ++i) {
    peers_.push_back(i == rank_ ? nullptr : std::make_unique<Peer>(i));
    if (i == rank_) continue;
    peers_.back()->owner = this;
    peers_.back()->credit = credit_;
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = came;
  handler.arg = this;
  if (const auto status = ucp_worker_set_am_recv_handler(worker_.get(), &handler); status != UCS_OK)
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {}: UCX cannot receive: {}", rank_, ucs_status_string(status)));
  try {
    meet(context);
  } catch (...) {
    leave();
    throw;
  }
}

UcxTransport::~UcxTransport() { leave(); }

void UcxTransport::meet(const Context& context) {
  auto& store = *context.store;
  store.set(key(rank_),
            fmt::format("{} {}\n", process_namespace(), ::getpid()) + worker_.address());
  try {
    std::vector<int> missing;
    for (const auto& peer : peers_) {
      if (!peer) continue;
      try {
        const auto text = store.get(key(peer->rank), context.deadline);
        if (text.starts_with(kNoAddress))
          throw Error(ErrorCode::unavailable, text.substr(1)).with_rank(peer->rank);
        const auto line = text.find('\n');
        if (line == text.npos)
          throw Error(ErrorCode::corrupt_data,
                      fmt::format("rank {} left no address of UCX in the store", peer->rank));
        peer->address = text.substr(line + 1);
        watch_process(*peer, text.substr(0, line));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::timeout) throw;
        missing.push_back(peer->rank);
      }
    }
    if (!missing.empty())
      throw Error(
          ErrorCode::timeout,
          fmt::format("rank {} waited for {} to connect through UCX, without success; did it die?",
                      rank_, format_rank_set(missing)))
          .with_rank(missing.front());
    for (const auto& peer : peers_) {
      if (!peer) continue;
      open_endpoint(*peer);
      offer_memory(*peer);
    }
    await_hellos(context);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable)
      ToldFailure(store, "ucx", rank_, context.size).fail(error);
    throw;
  }
  for (const auto& peer : peers_)
    if (peer) peer->route = transports_of(peer->endpoint);
}

void UcxTransport::await_hellos(const Context& context) {
  auto look = Clock::now();
  while (true) {
    std::vector<int> silent;
    for (const auto& peer : peers_) {
      if (!peer) continue;
      if (!peer->broken.empty())
        throw Error(ErrorCode::unavailable,
                    fmt::format("rank {} cannot reach rank {} through UCX: {}; check that "
                                "TUTTI_INTERFACE names a network that they share",
                                rank_, peer->rank, peer->broken))
            .with_rank(peer->rank);
      if (!peer->said_hello || !peer->has_attached || peer->notes > 0) silent.push_back(peer->rank);
    }
    if (silent.empty()) return;
    if (context.deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} waited for {} to answer through UCX, without success; check "
                              "that TUTTI_INTERFACE names a network that they share",
                              rank_, format_rank_set(silent)))
          .with_rank(silent.front());
    // A rank that has failed reports it in the store.
    if (Clock::now() >= look) {
      ToldFailure(*context.store, "ucx", rank_, context.size).look();
      look = Clock::now() + std::chrono::milliseconds(200);
    }
    if (ucp_worker_progress(worker_.get()) == 0 && ucp_worker_arm(worker_.get()) == UCS_OK)
      poller_.wait(std::clamp(context.deadline.poll_milliseconds(), 0, 20));
    look_for_deaths();
  }
}

// Watches the peer's process, so that its end is noticed immediately. In shared memory UCX does not
// notice it.
void UcxTransport::watch_process(Peer& peer, const std::string& place) {
  const auto words = split_text(place, ' ');
  if (words.size() != 2 || words[0].empty() || words[0] != process_namespace()) return;
  const auto process = parse_integer(words[1], 1, 1 << 30);
  if (!process || *process == ::getpid()) return;
  peer.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(*process), 0)));
  if (peer.process)
    deaths_.watch(peer.process.get(), EPOLLIN);
  else if (errno == ESRCH)
    peer.broken = "its process ended";
}

void UcxTransport::open_endpoint(Peer& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = broke, .arg = &peer};
  const auto status = ucp_ep_create(worker_.get(), &params, &peer.endpoint);
  if (status == UCS_OK) return;
  peer.endpoint = nullptr;
  throw Error(ErrorCode::unavailable,
              fmt::format("rank {}: UCX finds no way to rank {}: {}; check TUTTI_INTERFACE and, if "
                          "they are set, UCX_TLS and UCX_NET_DEVICES",
                          rank_, peer.rank, ucs_status_string(status)))
      .with_rank(peer.rank);
}

void UcxTransport::close_endpoint(Peer& peer) {
  if (!peer.endpoint) return;
  detach_all(peer);
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  how.user_data = this;
  how.cb.send = [](void* request, ucs_status_t, void* self) {
    ucp_request_free(request);
    --static_cast<UcxTransport*>(self)->closing_;
  };
  ++closing_;
  void* request = ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &how);
  if (!UCS_PTR_IS_PTR(request)) --closing_;
}

// Returns whether this rank may stop serving the peer after its own goodbye. Over TCP the peer must
// first say farewell, because closing a socket may drop data that was written to it. Shared memory
// and hardware with acknowledgements drop nothing.
bool UcxTransport::is_told(const Peer& peer) const {
  if (peer.notes > 0) return false;
  if (!peer.open || !peer.endpoint) return true;
  return peer.controls.empty() &&
         (peer.said_farewell || peer.route.find("tcp") == std::string::npos);
}

void UcxTransport::goodbye(double seconds) noexcept {
  try {
    const auto deadline = Deadline::after(seconds);
    std::vector<bool> told(peers_.size());
    leaving_ = true;
    while (!aborted_) {
      const bool moved = progress();
      bool is_over = true;
      for (const auto& peer : peers_) {
        if (!peer) continue;
        const auto at = static_cast<size_t>(peer->rank);
        if (!told[at] && peer->open && peer->controls.empty()) {
          told[at] = true;
          tell(*peer, {.type = Type::goodbye});
        }
        is_over = is_over && is_told(*peer);
      }
      if (is_over || deadline.passed()) return;
      if (!moved && arm()) poller_.wait(deadline.poll_milliseconds());
    }
  } catch (const std::exception&) {
    // If the goodbye cannot be sent, the peer sees the end of the connection instead.
  }
}

// Ends the transport within bounds of time. Flushes the messages that were sent, notifies the peers
// that got no goodbye, and lets UCX give back all memory.
void UcxTransport::leave() noexcept {
  try {
    give_up_all();
    const auto patience = Deadline::after(0.2);
    for (const auto& peer : peers_) {
      if (!peer || !peer->open || leaving_ || peer->address.empty() || !peer->broken.empty())
        continue;
      tell(*peer, {.type = Type::gone});
    }
    ucp_request_param_t plain{};
    void* flush = is_frozen_ ? nullptr : ucp_worker_flush_nbx(worker_.get(), &plain);
    const auto is_flushed = [&] {
      return !UCS_PTR_IS_PTR(flush) || ucp_request_check_status(flush) != UCS_INPROGRESS;
    };
    // Returns true if UCX still sends notes to the peer. Also returns true if the peer may be
    // attaching memory that is about to be freed.
    const auto is_busy = [](const auto& peer) {
      return peer && (peer->notes > 0 || (peer->was_offered && !peer->has_attached && peer->open &&
                                          peer->broken.empty()));
    };
    while (!is_frozen_ && !patience.passed() &&
           (!is_flushed() || std::any_of(peers_.begin(), peers_.end(), is_busy)))
      ucp_worker_progress(worker_.get());
    if (UCS_PTR_IS_PTR(flush)) ucp_request_free(flush);
    // All peers are closed first, so that no `taken` is sent for these arrivals. This rank has not
    // received them, and it has already told the senders that it leaves.
    for (const auto& peer : peers_)
      if (peer) peer->open = false;
    arrivals_.for_each([&](UcxArrival* arrival) { forget_arrival(arrival); });
    for (const auto& peer : peers_)
      if (peer) {
        close_endpoint(*peer);
        drop_old_keys(*peer);
      }
    const auto limit = Deadline::after(2);
    while (closing_ > 0 && !is_frozen_ && !limit.passed()) ucp_worker_progress(worker_.get());
  } catch (const std::exception&) {
    // Destroying the worker frees the rest.
  }
}

}  // namespace tutti
