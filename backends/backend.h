#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/backends/channel.h"
#include "tutti/backends/store.h"
#include "tutti/base/cpp20.h"
#include "tutti/base/deadline.h"
#include "tutti/base/log.h"
#include "tutti/collectives/collective.h"
#include "tutti/collectives/executor.h"
#include "tutti/collectives/region.h"
#include "tutti/collectives/thresholds.h"
#include "tutti/tensor/device.h"

namespace tutti {

/// Where a rank runs, as the ranks tell each other through the Store.
struct Place {
  std::string host;       // network namespace and boot id, or what Options::host says
  std::string host_name;  // for people
  int pid = 0;            // in its own PID namespace
  int world_rank = 0;     // that it was launched as; differs in a split or shrunk communicator
  std::vector<int> cores = {};  // on which its process may run
  std::string machine = {};     // whose cores these are; several hosts may share them
  int local_rank = -1;  // in the job, among the ranks of its host; -1: as in this communicator
  int incarnation = 0;  // how often this world rank had been launched before
  /// The one device that its process used before it came here and has no other of
  /// (DeviceRuntime::identity); empty: none, or several.
  std::string device = {};
  int64_t pid_space = 0;  // inode of its PID namespace, as each container has one of its own

  /// Whether the two see each other's processes under one number.
  bool shares_pids(const Place& other) const {
    return machine == other.machine && pid_space == other.pid_space;
  }
};

struct BackendPlugin;

/// Whether a backend of several hosts measures their network, and where it keeps the figures.
struct Probe {
  /// When to measure.
  enum class Mode : uint8_t { off, when_unknown, always };
  Mode mode = Mode::off;  // whether to measure
  std::string file = {};  // empty: nothing is kept
};

/// What a backend hands to the backend of a communicator that is split off its own.
class Inheritance {
 public:
  virtual ~Inheritance() = default;
};

/// The settings that only some backends know: the value of each by the name of its variable.
using Settings = std::map<std::string, std::string, std::less<>>;

/// All that a backend is told when it connects. Borrowed for the call, except the shared store.
struct Context {
  std::string name;                         // by which the backend was asked for: "tcp", "shm+ucx"
  int rank = 0;                             // in this communicator
  int size = 1;                             // of this communicator
  std::shared_ptr<Store> store;             // keys of this communicator and epoch only
  std::vector<Place> places;                // one a rank
  std::string secret;                       // of the job; empty: none (threads of one process)
  std::string network_interface;            // "" any; a name such as eth0, or an address
  Deadline deadline = Deadline::after(60);  // of connecting
  Determinism determinism = Determinism::fastest;  // what bits must be equal
  std::string algorithms;                          // score string for the chooser
  ExecutorOptions executor;                        // segments and the like
  Probe probe;                                     // of the network between hosts
  Thresholds thresholds;                           // for the chooser, from a probe
  Settings settings;                               // of single backends; see setting()
  LogSink log;                                     // any thread
  /// From the backend of the communicator that this one is split off; null: nothing.
  std::shared_ptr<Inheritance> inheritance;
  /// The built-in backends, and those that a name or the scores ask for; for composites.
  std::span<const BackendPlugin* const> plugins;
  /// The one of them for this name ("shm+ucx": hierarchical); null if it is not there.
  const BackendPlugin* plugin(std::string_view called) const;
  std::vector<int> hosts() const;  // host number of each rank, by first appearance
  /// The value of a setting that only some backends know, as text: "4" for "TUTTI_TCP_SOCKETS". The
  /// library has checked it. Throws Error(invalid_argument) that names a setting which this library
  /// does not hand to backends.
  const std::string& setting(std::string_view variable) const;
};

/// A device whose memory a backend works on itself (Launch::device), and what it does there.
struct DeviceService {
  Device device;                           // whose memory
  std::vector<CollectiveKind> kinds = {};  // collectives that it runs there
  std::vector<DataType> dtypes = {};       // element types
  std::vector<ReduceOp> ops = {};          // of kinds that reduce
};

/// What a backend says of itself.
struct Capabilities {
  std::string name;           // "shm"
  bool across_hosts = false;  // whether ranks may be on several
  std::string route = {};  // how a library brings data to the peers; empty: as the Transport says
  std::vector<DeviceService> devices = {};                           // none: host memory only
  bool serves(CollectiveKind, DataType, ReduceOp) const;             // in host memory
  bool serves_on(Device, CollectiveKind, DataType, ReduceOp) const;  // in a device's memory
};

/// A door to the other ranks. start() only posts; any number of operations run at once, matched on
/// all ranks by Launch::tag, in any order.
class Backend : public Progressive {
 public:
  virtual Capabilities capabilities() const = 0;                              // Never changes.
  virtual std::unique_ptr<Region> allocate(size_t bytes, Device device) = 0;  // Memory for buckets.
  /// Whether this memory lies in a Region that the peers reach; see Launch::windows. Any thread.
  virtual bool shares(const std::byte*, size_t) const { return false; }
  /// True: start() has memory of its own for what Launch::edges pack, and needs none of the
  /// Collective's. False: the Collective's input and output are the bucket. Without edges: whether
  /// start() wants this in its Launch::queue (a blocking call with a name, an operation of all
  /// ranks). All ranks hear the same answer.
  virtual bool packs_itself(const Collective&, const Launch&) const { return false; }
  /// Posts; never waits. It ends, or throws, in the operation's own progress().
  virtual OperationPtr start(const Collective& collective, const Launch& launch) = 0;
  /// What this rank would send if start() ran this to its end, known without running it; nothing
  /// where a library keeps that to itself.
  virtual Traffic predict(const Collective&, const Launch&) { return {}; }
  /// True where what is pending moves on threads of a library: they need the cores, so that a
  /// thread that waits sleeps at once.
  virtual bool works_elsewhere() const { return false; }
  /// The algorithm that start() would run, for the timeline.
  virtual std::string_view algorithm(const Collective& collective) const = 0;
  /// The backend that start() would use, for the timeline; a composite names the one it chooses.
  virtual std::string name_for(const Collective&) const { return capabilities().name; }
  /// Ranks that have not come to the oldest operation of this queue, as far as is known.
  virtual std::vector<int> missing(int) const { return {}; }
  /// Messages between ranks, for the control plane; null where a library offers none.
  virtual Transport* transport() = 0;
  virtual TransportCounters counters() { return transport()->counters(); }  // what was sent so far
  /// What this rank's backend in a communicator of the ranks of `color`, ordered by their keys, can
  /// be built on; color < 0: this rank joins none. All ranks call it in one order, each by the
  /// thread that splits, beside the engine; `context` is this communicator's, with a store for this
  /// call alone. A failure is told by the connect() that gets it.
  virtual std::shared_ptr<Inheritance> split(const Context&, int /*color*/, int /*key*/) {
    return nullptr;
  }
};

/// Grows whenever this header, or one that it includes, changes what a plugin was compiled for.
inline constexpr uint32_t kBackendAbi = 21;

/// What a backend's folder exports: one record. What composites can use it for: `open` makes the
/// channels to the given peers, `transport` the messages between all ranks; null if it has none.
struct BackendPlugin {
  uint32_t abi = kBackendAbi;  // first, so that it can be read whatever follows
  const char* name = "";       // as TUTTI_BACKEND calls it
  const char* summary = "";    // one line, for tutti-doctor
  /// Meets all ranks by Context::store, within its deadline; any thread.
  std::unique_ptr<Backend> (*connect)(const Context& context) = nullptr;
  /// Channels to these peers alone; null: it has none.
  std::vector<std::unique_ptr<Channel>> (*open)(const Context& context,
                                                std::span<const int> peers) = nullptr;
  /// Messages between all ranks; null: it has none.
  std::unique_ptr<Transport> (*transport)(const Context& context) = nullptr;
  /// The version of the library behind it, for people; null if there is none.
  std::string (*version)() = nullptr;
  /// It works on the memory of devices; as an inner level it does so within a host (nccl+tcp).
  bool works_on_devices = false;
};

/// The one symbol of a plugin (libtutti_backend_<name>.so), which defines it as
///   const BackendPlugin tutti::tutti_backend_plugin = {.name = "<name>", ...};
extern "C" const BackendPlugin tutti_backend_plugin;

/// The built-in backends; the list is generated by CMake from the folders.
std::span<const BackendPlugin* const> builtin_backends();
/// A built-in backend, or a plugin, which is loaded now and never unloaded. Plugins are looked for
/// in `folders` and then in plugin_folder(). Throws Error(unavailable | version | corrupt_data)
/// that says what was found instead and what to do.
const BackendPlugin& find_backend(std::string_view name, std::span<const std::string> folders = {});

/// Two levels as one backend's name: "shm+ucx" is shared memory within a host and UCX between
/// hosts.
struct Levels {
  std::string_view inner;  // within a host
  std::string_view cross;  // between hosts
};
/// Nothing if the name has no plus sign.
std::optional<Levels> levels_of(std::string_view name);

/// Each counter of `more` to that of `sum`.
void add(TransportCounters& sum, const TransportCounters& more);

/// Runs our schedules over channels: the Backend of memory, shm, tcp and hierarchical.
/// channels[peer] is null at peer == rank.
std::unique_ptr<Backend> make_stream_backend(const Context& context, std::string name,
                                             std::vector<std::unique_ptr<Channel>> channels);

/// The same over any Transport (a library that offers one).
std::unique_ptr<Backend> make_transport_backend(const Context& context, std::string name,
                                                std::unique_ptr<Transport> transport);
/// Messages over channels; channels[rank] is null.
std::unique_ptr<Transport> make_stream_transport(int rank,
                                                 std::vector<std::unique_ptr<Channel>> channels);

}  // namespace tutti
