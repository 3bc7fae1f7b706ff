#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/backends/stream/eager_buffers.h"
#include "tutti/backends/stream/intrusive.h"
#include "tutti/backends/stream/tag_set.h"
#include "tutti/backends/ucx/library.h"
#include "tutti/backends/ucx/ucx_memory.h"
#include "tutti/backends/ucx/ucx_message.h"
#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// The Transport over UCX. Small messages are active messages, sent immediately and bounded by
/// credit. A larger message waits for its receive. Then the sender puts the bytes into the
/// receiver's mapped memory, if UCX can address that memory (shared memory of one host). Otherwise
/// UCX moves the bytes in a rendezvous.
class UcxTransport final : public Transport {
 public:
  /// Connects with the other ranks through the store. Throws Error(timeout | unavailable), which
  /// names the missing ranks.
  explicit UcxTransport(const Context& context);
  ~UcxTransport() override;

  bool progress() override;
  bool arm() override;
  int descriptor() const override { return poller_.descriptor(); }
  void abort(const Error& error) noexcept override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override;
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override;
  Ticket irecv_view(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override;
  const std::byte* view(Ticket ticket) override;
  Loan loan(Ticket ticket) override;
  bool give_back(Ticket ticket) override;
  TransferState test(Ticket ticket, uint32_t* verdict) override;
  void cancel(Ticket ticket) override;
  void discard(uint64_t first, uint64_t last) override;
  bool has_veto(uint64_t tag) const override;

  void post(int peer, std::span<const std::byte> message) override;
  bool take(int& peer, std::vector<std::byte>& message) override;
  std::optional<PeerEvent> take_event() override;
  void goodbye(double seconds) noexcept override;
  TransportCounters counters() const override { return counters_; }
  std::string_view route(int peer) const override;
  std::unique_ptr<Region> allocate(size_t bytes) override { return memory_->allocate(bytes); }

 private:
  struct Peer {
    explicit Peer(int number) : rank(number) {}
    const int rank;
    UcxTransport* owner = nullptr;
    std::string address;
    std::string route;
    ucp_ep_h endpoint = nullptr;
    // readable when the peer's process has ended; empty if it cannot be watched
    Descriptor process;
    bool open = true;  // false: no more messages are sent to the peer or accepted from it
    bool said_hello = false;
    bool was_offered = false;   // this rank has offered its slots to the peer
    bool has_attached = false;  // the peer has answered the offer
    bool said_goodbye = false;
    bool said_farewell = false;
    bool closes = false;             // the endpoint closes once the notes to the peer are sent
    std::string broken;              // the failure that UCX reported, for settle_ends()
    uint32_t transfers = 0;          // number of transfers that UCX works on
    uint32_t notes = 0;              // number of notes that UCX works on
    uint64_t credit = 0;             // credit left for eager messages to the peer
    uint64_t held = 0;               // cost of the peer's eager messages that wait on this rank
    uint64_t owed = 0;               // credit that this rank must return to the peer
    uint64_t control_in_flight = 0;  // cost of sent control messages that the peer has not taken
    uint64_t control_queued = 0;
    uint64_t control_owed = 0;
    uint32_t announced = 0;  // number of messages to the peer whose bytes wait on this rank
    /// The peer's sign for this rank, mapped into this process. Null if this rank cannot address
    /// the peer's memory; then the peer gets no puts.
    const UcxSign* sign = nullptr;
    std::map<uint32_t, ucp_rkey_h> keys;  // by region id: the peer's regions
    std::vector<ucp_rkey_h> old_keys;     // keys of regions that are gone but may still be viewed
    uint32_t views = 0;                   // number of views of the peer's memory that are in use
    std::set<uint32_t> told;              // ids of this rank's regions whose keys the peer has
    NodeQueue<UcxTransfer> sends;         // sends that wait for their turn
    NodeQueue<UcxNote> controls;          // control messages that wait for their turn
  };
  struct ControlMessage {
    int peer = -1;
    std::vector<std::byte> bytes;
  };

  // ucx_connect.cc: the start and the end of the transport.
  void meet(const Context& context);
  void watch_process(Peer& peer, const std::string& place);
  void open_endpoint(Peer& peer);
  void close_endpoint(Peer& peer);
  void await_hellos(const Context& context);
  bool is_told(const Peer& peer) const;
  void leave() noexcept;

  // ucx_progress.cc: incoming messages and lost peers.
  static void broke(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t came(void* self, const void* header, size_t header_bytes, void* data,
                           size_t bytes, const ucp_am_recv_param_t* param);
  ucs_status_t handle(const UcxHeader& header, std::byte* data, size_t bytes, bool is_rendezvous);
  ucs_status_t message_came(Peer& peer, const UcxHeader& header, std::byte* data);
  void forget_freed_regions();
  void withdraw_came(Peer& peer, const UcxHeader& header);
  void answer_came(Peer& peer, const UcxHeader& header);
  bool lingers();
  bool look_for_deaths();
  void lose(Peer& peer, const std::string& detail);
  void fail_all(Peer& peer);
  void settle_ends();
  void handle_abort();

  // ucx_transport.cc: posted messages.
  Peer& peer_at(int rank);
  UcxTransfer* make_transfer(int peer, uint64_t tag, uint32_t key, bool is_send, size_t bytes);
  UcxTransfer* find(Ticket ticket);
  Ticket receive(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes, bool may_view);
  bool try_send(Peer& peer, UcxTransfer* send);
  void flush_sends(Peer& peer);
  void tell(Peer& peer, const UcxHeader& header, std::string_view bytes = {});
  void flush_controls(Peer& peer);
  void send_note(Peer& peer, UcxNote* note);
  void receive_rendezvous(UcxTransfer* receive, void* descriptor);
  void forget_arrival(UcxArrival* arrival);
  void return_credit(Peer& peer, uint64_t cost);
  static void sent(void* request, ucs_status_t status, void* transfer);
  static void received(void* request, ucs_status_t status, size_t bytes, void* transfer);
  static void note_sent(void* request, ucs_status_t status, void* note);
  void transfer_ran(UcxTransfer* transfer, ucs_status_t status);
  void settle(UcxTransfer* transfer, bool went_well);
  void note_ran(UcxNote* note);

  // ucx_put.cc: messages that the sender puts.
  void make_slots(int peers);
  UcxSign& sign_for(int peer) const;
  void give_up_all();
  void offer_memory(Peer& peer);
  void hello_came(Peer& peer, const UcxHeader& header, const std::byte* key, size_t bytes);
  ucs_status_t attach(Peer& peer, uint32_t region, const std::byte* key, size_t bytes);
  bool take_key(Peer& peer, uint32_t region, const std::byte* key, size_t bytes);
  void detach(Peer& peer, uint32_t region);
  void detach_all(Peer& peer);
  void receive_put(UcxTransfer* receive, uint64_t ticket);
  void give_places(UcxTransfer* receive);
  void landed_came(Peer& peer, const UcxHeader& header);
  void end_put_receive(UcxTransfer* receive, ucs_status_t status);
  void free_slot(uint32_t slot);
  void give_up_places();
  void place_came(Peer& peer, const UcxHeader& header, const std::byte* key, size_t bytes);
  static void put_ran(void* request, ucs_status_t status, void* note);
  static void put_flushed(void* request, ucs_status_t status, void* note);
  void flush_put(UcxNote* note, ucs_status_t status);
  void end_part(UcxNote* note, ucs_status_t status);
  void taken_came(Peer& peer, const UcxHeader& header);
  void end_put_send(UcxTransfer* send, bool is_good);
  void fail_put(Peer& peer, UcxTransfer& transfer);

  // ucx_view.cc: messages that the receiver reads in the sender's memory.
  uint32_t region_for(Peer& peer, std::span<const std::byte> bytes, std::string& key);
  void receive_announced(UcxTransfer* receive, const UcxHeader& header);
  bool show(UcxTransfer* receive, const UcxHeader& header);
  void drop_key(Peer& peer, ucp_rkey_h key);
  void drop_old_keys(Peer& peer);

  const int rank_;
  const uint64_t credit_;  // credit per pair of ranks and direction
  TransportCounters counters_;
  Poller poller_;
  Poller deaths_;  // watches the processes of peers on this host
  Bell abort_bell_;
  Descriptor timer_;
  std::atomic<bool> abort_asked_{false};
  bool aborted_ = false;
  bool is_frozen_ = false;  // UCX must never be progressed again
  bool leaving_ = false;
  bool slept_ = false;
  bool watches_worker_ = true;
  bool moved_ = false;  // a message has moved since the timer was set
  bool timer_runs_ = false;
  Clock::time_point timer_due_, last_talk_;  // last_talk_: time of the last control message
  uint32_t open_transfers_ = 0;
  bool has_ends_ = false;  // there is work for settle_ends()
  uint32_t idle_rounds_ = 0;
  // deadline after which endpoints are closed even if notes to their peers are not sent yet
  Deadline last_word_ = Deadline::never();
  uint32_t closing_ = 0;  // number of endpoints that are being closed

  NodePool<UcxTransfer> transfers_;
  NodePool<UcxArrival> arrival_nodes_;
  NodePool<UcxNote> notes_;
  EagerBuffers buffers_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null for this rank
  MatchTable<UcxTransfer> posted_;
  MatchTable<UcxArrival> arrivals_;
  // sends that completed immediately; the next progress() sets their results
  std::vector<std::pair<UcxTransfer*, ucs_status_t>> through_;
  size_t vetoes_here_ = 0;
  std::vector<UcxTransfer*> vetoed_;
  TagSet discarded_;
  std::deque<ControlMessage> inbox_;
  std::deque<PeerEvent> events_;
  std::vector<uint32_t> free_slots_;
  NodeQueue<UcxTransfer> starved_;  // receives that wait for a slot
  std::shared_ptr<UcxMemory> memory_;
  std::unique_ptr<Region> slots_;
  std::byte* first_slot_ = nullptr;
  uint32_t slots_region_ = 0;
  // the last member, so that it is destroyed first: until then UCX may use all other members
  UcxWorker worker_;
};

}  // namespace tutti
