#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/backends/stream/frame.h"
#include "tutti/backends/ucx/limits.h"
#include "tutti/backends/ucx/ucx_transport.h"
#include "tutti/base/deadline.h"

// The functions of UcxTransport for incoming messages, lost peers and sleeping.

namespace tutti {

using Stage = UcxTransfer::Stage;
using Type = UcxMessageType;

bool UcxTransport::progress() {
  if (!aborted_ && abort_asked_.load(std::memory_order_acquire)) {
    handle_abort();
    return true;
  }
  if (is_frozen_) return false;
  bool moved = !through_.empty();
  for (const auto& [send, status] : through_) transfer_ran(send, status);
  through_.clear();
  forget_freed_regions();
  moved |= ucp_worker_progress(worker_.get()) != 0;
  if (has_ends_) {
    settle_ends();
    moved = true;
  }
  moved_ |= moved;
  // A spinning thread checks for ended processes only now and then. A thread that has slept checks
  // immediately, because the end of a process may have woken it.
  constexpr uint32_t kOften = 256;
  if (!moved && (std::exchange(slept_, false) || ++idle_rounds_ % kOften == 0))
    moved = look_for_deaths();
  return moved;
}

bool UcxTransport::arm() {
  if (!aborted_ && abort_asked_.load(std::memory_order_acquire)) return false;
  if (is_frozen_) return true;
  // UCX closes endpoints only inside progress(), and nothing wakes a sleeping thread for that. So
  // the thread must not sleep while endpoints are being closed.
  if (has_ends_ || closing_ > 0 || !through_.empty()) return false;
  slept_ = lingers() || ucp_worker_arm(worker_.get()) == UCS_OK;
  return slept_;
}

// Returns whether the thread sleeps without arming UCX. Arming costs more than a small operation,
// both on this rank and on its peers, which must then wake this rank's thread. Between two
// operations no incoming message is urgent. So a timer wakes the thread after a while, and UCX is
// armed only if nothing moved in that time. A running timer is not set again, because setting a
// timer also costs as much as a small operation.
bool UcxTransport::lingers() {
  constexpr auto kWhile = std::chrono::microseconds(500);
  constexpr auto kTalk = std::chrono::milliseconds(10);
  const auto now = Clock::now();
  const bool has_fired = timer_runs_ && now >= timer_due_;
  const bool is_quiet = open_transfers_ == 0 && now - last_talk_ > kTalk;
  const bool lingers = is_quiet && (moved_ || (timer_runs_ && !has_fired));
  if (lingers == watches_worker_) {
    if (lingers)
      poller_.forget(worker_.descriptor());
    else
      poller_.watch(worker_.descriptor(), EPOLLIN);
    watches_worker_ = !lingers;
  }
  if (timer_runs_ ? has_fired : lingers) {
    itimerspec once{};
    if (lingers) once.it_value.tv_nsec = std::chrono::nanoseconds(kWhile).count();
    ::timerfd_settime(timer_.get(), 0, &once, nullptr);
    timer_runs_ = lingers;
    timer_due_ = now + kWhile;
    moved_ = false;
  }
  return lingers;
}

// --- messages -----------------------------------------------------------------------------------

ucs_status_t UcxTransport::came(void* self, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param) {
  UcxHeader message;
  if (header_bytes != sizeof message) return UCS_OK;
  std::memcpy(&message, header, sizeof message);
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<UcxTransport*>(self)->handle(message, static_cast<std::byte*>(data), bytes,
                                                  is_rendezvous);
}

ucs_status_t UcxTransport::handle(const UcxHeader& message, std::byte* data, size_t bytes,
                                  bool is_rendezvous) {
  if (message.from >= peers_.size() || !peers_[message.from]) return UCS_OK;
  Peer& peer = *peers_[message.from];
  if (message.type == Type::farewell) peer.said_farewell = true;
  if (!peer.open) return UCS_OK;
  switch (message.type) {
    case Type::eager:
      if (is_rendezvous || message.length != bytes) break;
      return message_came(peer, message, data);
    case Type::rendezvous:
      if (!is_rendezvous || (message.length != bytes && message.length != 0)) break;
      return message_came(peer, message, data);
    case Type::announce:
      if (!take_key(peer, message.region, data, bytes)) return UCS_OK;
      return message_came(peer, message, nullptr);
    case Type::place:
      place_came(peer, message, data, bytes);
      return UCS_OK;
    case Type::landed:
      landed_came(peer, message);
      return UCS_OK;
    case Type::taken:
      taken_came(peer, message);
      return UCS_OK;
    case Type::forget:
      detach(peer, message.key);
      return UCS_OK;
    case Type::withdraw:
      withdraw_came(peer, message);
      return UCS_OK;
    case Type::withdrawn:
      answer_came(peer, message);
      return UCS_OK;
    case Type::credit:
      peer.credit += message.length;
      peer.control_in_flight -= message.ticket;
      if (peer.credit > credit_ || peer.control_in_flight > kControlWindow) break;
      flush_controls(peer);
      flush_sends(peer);
      return UCS_OK;
    case Type::control:
      if (message.length != bytes) break;
      last_talk_ = Clock::now();
      if (!aborted_) inbox_.push_back({peer.rank, std::vector<std::byte>(data, data + bytes)});
      return UCS_OK;
    case Type::hello:
      hello_came(peer, message, data, bytes);
      return UCS_OK;
    case Type::attached:
      peer.has_attached = true;
      return UCS_OK;
    case Type::goodbye:
      peer.said_goodbye = true;
      tell(peer, {.type = Type::farewell});
      lose(peer, "it said goodbye");
      return UCS_OK;
    case Type::farewell:
      return UCS_OK;
    case Type::gone:
      lose(peer, "its Communicator was destroyed");
      return UCS_OK;
  }
  peer.broken = "it sent a message that makes no sense";
  has_ends_ = true;
  return UCS_OK;
}

ucs_status_t UcxTransport::message_came(Peer& peer, const UcxHeader& message, std::byte* data) {
  const bool is_rendezvous = message.type != Type::eager;
  const bool is_put = message.type == Type::announce;
  const uint64_t cost = eager_cost(message.length);
  if (!is_rendezvous && (peer.held += cost) > credit_) {
    peer.held -= cost;
    peer.broken = "it sent more messages than it had credit for";
    has_ends_ = true;
    return UCS_OK;
  }
  UcxTransfer* receive = posted_.find(peer.rank, message.tag, message.key);
  if (receive) {
    posted_.remove(receive);
    receive->verdict = message.verdict;
    if (receive->verdict != 0) vetoed_.push_back(receive);
    const bool fits = receive->bytes == message.length;
    if (fits && is_put && receive->bytes > 0) {
      receive_announced(receive, message);
      return UCS_OK;
    }
    if (fits && is_rendezvous && receive->bytes > 0) {
      receive_rendezvous(receive, data);
      return UCS_INPROGRESS;
    }
    if (fits && receive->bytes > 0) std::memcpy(receive->target, data, receive->bytes);
    receive->stage = fits ? Stage::done : Stage::failed;
  }
  // After an abort a rendezvous waits, as if no receive had been posted for it.
  if (receive || discarded_.contains(message.tag) || (aborted_ && !is_rendezvous)) {
    if (!is_rendezvous) return_credit(peer, cost);
    if (is_put) tell(peer, {.type = Type::taken, .ticket = message.ticket});
    return UCS_OK;
  }
  UcxArrival* arrival = arrival_nodes_.take();
  arrival->peer = peer.rank;
  arrival->tag = message.tag;
  arrival->key = message.key;
  arrival->verdict = message.verdict;
  arrival->bytes = message.length;
  arrival->ticket = message.ticket;
  arrival->header = message;
  arrival->is_rendezvous = is_rendezvous;
  arrival->is_put = is_put;
  arrival->descriptor = is_rendezvous ? data : nullptr;
  arrival->buffer = is_rendezvous ? nullptr : buffers_.take(message.length);
  if (arrival->buffer) std::memcpy(arrival->buffer, data, message.length);
  arrivals_.add(arrival);
  if (arrival->verdict != 0) ++vetoes_here_;
  return arrival->descriptor ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::withdraw_came(Peer& peer, const UcxHeader& message) {
  UcxArrival* found = nullptr;
  arrivals_.any(message.tag, [&](UcxArrival& arrival) {
    const bool is_it =
        arrival.peer == peer.rank && arrival.is_rendezvous && arrival.ticket == message.ticket;
    if (is_it) found = &arrival;
    return is_it;
  });
  // The answer is sent before forget_arrival(), after which UCX reports the end of the message to
  // the sender. The opposite order would work too.
  tell(peer, {.type = Type::withdrawn, .length = found != nullptr, .ticket = message.ticket});
  if (found) forget_arrival(found);
}

void UcxTransport::answer_came(Peer& peer, const UcxHeader& message) {
  UcxTransfer* send = find(message.ticket);
  if (!send || send->peer != peer.rank || !send->awaits_answer) return;
  send->awaits_answer = false;
  if (message.length != 0) send->doomed = true;
  if (send->doomed && send->is_put)
    end_put_send(send, false);
  else if (send->is_sent)
    send->stage = send->doomed ? Stage::failed : Stage::done;
}

// --- ends ---------------------------------------------------------------------------------------

// UCX calls this whenever it notices a failure, even within other calls. So nothing is closed here.
void UcxTransport::broke(void* broken, ucp_ep_h, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(broken);
  if (peer.broken.empty()) peer.broken = ucs_status_string(status);
  peer.owner->has_ends_ = true;
}

bool UcxTransport::look_for_deaths() {
  if (!deaths_.wait(0)) return false;
  for (const auto& peer : peers_) {
    if (!peer || !peer->process) continue;
    Poller one;
    one.watch(peer->process.get(), EPOLLIN);
    if (!one.wait(0)) continue;
    deaths_.forget(peer->process.get());
    peer->process.reset();
    // Messages that the peer sent before its process ended may still wait to be read, for example
    // its goodbye.
    while (ucp_worker_progress(worker_.get()) != 0) {
    }
    if (peer->open && peer->broken.empty()) peer->broken = "its process ended";
    has_ends_ = true;
  }
  return true;
}

void UcxTransport::settle_ends() {
  has_ends_ = false;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    const bool is_broken = !peer->broken.empty();
    if (is_broken && peer->open) lose(*peer, peer->broken);
    if (is_broken || (peer->closes && (peer->notes == 0 || last_word_.passed())))
      close_endpoint(*peer);
    else if (peer->closes && aborted_)
      has_ends_ = true;
  }
}

void UcxTransport::lose(Peer& peer, const std::string& detail) {
  if (!peer.open) return;
  peer.open = false;
  sign_for(peer.rank).has_given_up.store(true);
  const auto kind = peer.said_goodbye ? PeerEvent::Kind::left : PeerEvent::Kind::lost;
  events_.push_back({peer.rank, kind, peer.said_goodbye ? "it said goodbye" : detail});
  fail_all(peer);
  arrivals_.for_each([&](UcxArrival* arrival) {
    if (arrival->peer == peer.rank && arrival->is_rendezvous) forget_arrival(arrival);
  });
}

// Fails everything that is pending with one peer. If UCX still uses memory of the user, the
// endpoint is closed before the user gets that memory back.
void UcxTransport::fail_all(Peer& peer) {
  while (UcxTransfer* send = peer.sends.pop()) send->stage = Stage::failed;
  while (UcxNote* note = peer.controls.pop()) notes_.give_back(note);
  transfers_.for_each([&](UcxTransfer& transfer) {
    if (transfer.peer != peer.rank || transfer.stage == Stage::unused || transfer.over()) return;
    if (transfer.stage == Stage::running && transfer.is_put) return fail_put(peer, transfer);
    if (transfer.stage == Stage::posted) posted_.remove(&transfer);
    if (transfer.stage == Stage::running && !transfer.is_sent)
      transfer.doomed = true;
    else
      transfer.stage = Stage::failed;
    transfer.awaits_answer = false;
  });
  if (peer.transfers == 0) return;
  peer.closes = true;
  has_ends_ = true;
}

void UcxTransport::abort(const Error&) noexcept {
  abort_asked_.store(true, std::memory_order_release);
  abort_bell_.ring();
}

void UcxTransport::handle_abort() {
  aborted_ = true;
  give_up_all();
  abort_bell_.silence();
  // Endpoints for which UCX uses memory are closed. Their peers are notified first, because no
  // message reaches them afterwards.
  last_word_ = Deadline::after(0.1);
  for (const auto& peer : peers_) {
    if (!peer) continue;
    fail_all(*peer);
    if (peer->closes) tell(*peer, {.type = Type::gone});
  }
  // When this returns, the caller of abort() takes its memory back. So UCX, and the peers that put
  // into that memory, must be done with it. The wait has a deadline, because a peer may not
  // respond. UCX 1.13 cannot cancel a rendezvous that it has begun to receive. If UCX still uses
  // memory at the deadline, it is never progressed again.
  const auto uses_memory = [](const auto& peer) { return peer && peer->transfers > 0; };
  const auto in_use = [&] { return std::any_of(peers_.begin(), peers_.end(), uses_memory); };
  const auto is_written = [](const auto& peer) {
    return peer && peer->open && peer->sign && peer->sign->writes.load() != 0;
  };
  const auto patience = Deadline::after(0.2);
  while ((in_use() || std::any_of(peers_.begin(), peers_.end(), is_written)) && !patience.passed())
    progress();
  give_up_places();
  if (!in_use()) return;
  is_frozen_ = true;
  for (const int fd : {worker_.descriptor(), deaths_.descriptor(), timer_.get()})
    poller_.forget(fd);
}

}  // namespace tutti
