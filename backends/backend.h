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

/// The location of a rank, which the ranks publish through the Store.
struct Place {
  std::string host;             // network namespace and boot id, or Options::host
  std::string host_name;        // for people
  int pid = 0;                  // in its own PID namespace
  int world_rank = 0;           // its rank in the job; differs in a split or shrunk communicator
  std::vector<int> cores = {};  // cores on which its process may run
  std::string machine = {};     // machine of these cores; several hosts may share it
  int local_rank = -1;          // among the job's ranks of its host; -1: as in this communicator
  int incarnation = 0;          // number of earlier launches of this world rank
  /// The device that its process used before it made the communicator (DeviceRuntime::identity).
  /// Empty if it used none or several.
  std::string device = {};
  int64_t pid_space = 0;  // inode of its PID namespace; each container has its own

  /// Returns whether both ranks see each other's processes under the same process id.
  bool shares_pids(const Place& other) const {
    return machine == other.machine && pid_space == other.pid_space;
  }
};

struct BackendPlugin;

/// Says whether a backend of several hosts measures their network, and where it keeps the figures.
struct Probe {
  /// When to measure.
  enum class Mode : uint8_t { off, when_unknown, always };
  Mode mode = Mode::off;  // when to measure
  std::string file = {};  // for the figures; empty: they are not kept
};

/// An object that a backend hands to the backend of a communicator that is split off its own.
class Inheritance {
 public:
  virtual ~Inheritance() = default;
};

/// The settings that only some backends know: the value of each by the name of its variable.
using Settings = std::map<std::string, std::string, std::less<>>;

/// The arguments of a backend's connect(). They are borrowed for the call, except the shared store.
struct Context {
  std::string name;                         // under which the backend was chosen: "tcp", "shm+ucx"
  int rank = 0;                             // in this communicator
  int size = 1;                             // of this communicator
  std::shared_ptr<Store> store;             // keys of this communicator and epoch only
  std::vector<Place> places;                // one per rank
  std::string secret;                       // of the job; empty: none (threads of one process)
  std::string network_interface;            // "" any; a name such as eth0, or an address
  Deadline deadline = Deadline::after(60);  // for connecting
  Determinism determinism = Determinism::fastest;  // which bits must be equal
  std::string algorithms;                          // score string for the chooser
  ExecutorOptions executor;                        // segment size and similar settings
  Probe probe;                                     // measures the network between hosts
  Thresholds thresholds;                           // for the chooser, from a probe
  Settings settings;                               // of single backends; see setting()
  LogSink log;                                     // any thread may call it
  /// Comes from the backend of the communicator that this one is split off; null: nothing.
  std::shared_ptr<Inheritance> inheritance;
  /// The built-in backends, and those that a name or the scores ask for; for composites.
  std::span<const BackendPlugin* const> plugins;
  /// Returns the plugin for this name ("shm+ucx": hierarchical), or null if there is none.
  const BackendPlugin* plugin(std::string_view called) const;
  std::vector<int> hosts() const;  // host number of each rank, by first appearance
  /// Returns the value of a setting that only some backends know, as text: "4" for
  /// "TUTTI_TCP_SOCKETS". The library has checked it. Throws Error(invalid_argument) that names a
  /// setting which this library does not hand to backends.
  const std::string& setting(std::string_view variable) const;
};

/// A device whose memory a backend uses directly (Launch::device), and the operations that it runs
/// there.
struct DeviceService {
  Device device;                           // the device
  std::vector<CollectiveKind> kinds = {};  // collectives that it runs there
  std::vector<DataType> dtypes = {};       // element types
  std::vector<ReduceOp> ops = {};          // for kinds that reduce
};

/// The abilities of a backend.
struct Capabilities {
  std::string name;           // "shm"
  bool across_hosts = false;  // whether ranks may be on several hosts
  std::string route = {};     // how a library sends data to the peers; empty: as the Transport says
  std::vector<DeviceService> devices = {};                           // none: host memory only
  bool serves(CollectiveKind, DataType, ReduceOp) const;             // in host memory
  bool serves_on(Device, CollectiveKind, DataType, ReduceOp) const;  // in a device's memory
};

/// The connection of a rank to its peers. start() only posts an operation. Any number of operations
/// run at the same time. All ranks match them by Launch::tag, in any order.
class Backend : public Progressive {
 public:
  virtual Capabilities capabilities() const = 0;                              // Never changes.
  virtual std::unique_ptr<Region> allocate(size_t bytes, Device device) = 0;  // Memory for buckets.
  /// Returns whether this memory is in a Region that the peers can access; see Launch::windows. Any
  /// thread may call it.
  virtual bool shares(const std::byte*, size_t) const { return false; }
  /// With Launch::edges: returns true if start() packs into memory of its own and does not use the
  /// Collective's input and output; if false, these are the bucket. Without edges: returns whether
  /// start() runs the operation in its Launch::queue (a blocking call with a name, an operation of
  /// all ranks). It must return the same value on all ranks.
  virtual bool packs_itself(const Collective&, const Launch&) const { return false; }
  /// Posts the operation and never waits. Its end, or its error, comes from the operation's own
  /// advance().
  virtual OperationPtr start(const Collective& collective, const Launch& launch) = 0;
  /// Returns the traffic that this rank would send for this operation, without running it. Returns
  /// nothing if a library does not report it.
  virtual Traffic predict(const Collective&, const Launch&) { return {}; }
  /// Returns true if pending operations run on threads of a library. These need the cores, so a
  /// thread that waits sleeps at once.
  virtual bool works_elsewhere() const { return false; }
  /// Returns the algorithm that start() would run, for the timeline.
  virtual std::string_view algorithm(const Collective& collective) const = 0;
  /// Returns the name of the backend that start() would use, for the timeline. A composite returns
  /// the name of the one that it chooses.
  virtual std::string name_for(const Collective&) const { return capabilities().name; }
  /// Returns the ranks that have not started the oldest operation of this queue, as far as is
  /// known.
  virtual std::vector<int> missing(int) const { return {}; }
  /// Returns the messages between ranks, for the control plane, or null if a library offers none.
  virtual Transport* transport() = 0;
  virtual TransportCounters counters() { return transport()->counters(); }  // what was sent so far
  /// Returns an object from which the backend of a split communicator can be made. That
  /// communicator has the ranks of `color`, ordered by their keys; a rank with color < 0 joins
  /// none. All ranks call it in the same order, on the thread that splits and beside the engine.
  /// `context` is this communicator's, with a store for this call alone. A failure is reported by
  /// the connect() that gets the object.
  virtual std::shared_ptr<Inheritance> split(const Context&, int /*color*/, int /*key*/) {
    return nullptr;
  }
};

/// This number grows whenever this header, or one that it includes, changes what a plugin was
/// compiled for.
inline constexpr uint32_t kBackendAbi = 21;

/// The one record that a backend's folder exports. Composites use two of its functions: `open`
/// makes channels to the given peers, and `transport` makes messages between all ranks.
struct BackendPlugin {
  uint32_t abi = kBackendAbi;  // first, so that it can be read whatever follows
  const char* name = "";       // value of TUTTI_BACKEND that chooses it
  const char* summary = "";    // one line, for tutti-doctor
  /// Connects to all ranks, which meet through Context::store, within the deadline. Any thread may
  /// call it.
  std::unique_ptr<Backend> (*connect)(const Context& context) = nullptr;
  /// Makes channels to these peers alone. Null if it has none.
  std::vector<std::unique_ptr<Channel>> (*open)(const Context& context,
                                                std::span<const int> peers) = nullptr;
  /// Makes messages between all ranks. Null if it has none.
  std::unique_ptr<Transport> (*transport)(const Context& context) = nullptr;
  /// Returns the version of the library behind it, for people. Null if there is no such library.
  std::string (*version)() = nullptr;
  /// True if it uses the memory of devices. As an inner level it does so within a host (nccl+tcp).
  bool works_on_devices = false;
};

/// The one symbol of a plugin (libtutti_backend_<name>.so), which defines it as
///   const BackendPlugin tutti::tutti_backend_plugin = {.name = "<name>", ...};
extern "C" const BackendPlugin tutti_backend_plugin;

/// Returns the built-in backends. CMake generates the list from the folders.
std::span<const BackendPlugin* const> builtin_backends();
/// Returns a built-in backend, or loads a plugin, which is never unloaded. Plugins are searched for
/// in `folders` and then in plugin_folder(). Throws Error(unavailable | version | corrupt_data)
/// that says what was found instead and what to do.
const BackendPlugin& find_backend(std::string_view name, std::span<const std::string> folders = {});

/// Two levels as one backend's name: "shm+ucx" is shared memory within a host and UCX between
/// hosts.
struct Levels {
  std::string_view inner;  // within a host
  std::string_view cross;  // between hosts
};
/// Returns both levels, or nothing if the name has no plus sign.
std::optional<Levels> levels_of(std::string_view name);

/// Adds each counter of `more` to that of `sum`.
void add(TransportCounters& sum, const TransportCounters& more);

/// Makes a backend that runs our schedules over channels, as memory, shm, tcp and hierarchical do.
/// channels[peer] is null at peer == rank.
std::unique_ptr<Backend> make_stream_backend(const Context& context, std::string name,
                                             std::vector<std::unique_ptr<Channel>> channels);

/// Makes the same over any Transport, for example that of a library.
std::unique_ptr<Backend> make_transport_backend(const Context& context, std::string name,
                                                std::unique_ptr<Transport> transport);
/// Makes a transport over channels; channels[rank] is null.
std::unique_ptr<Transport> make_stream_transport(int rank,
                                                 std::vector<std::unique_ptr<Channel>> channels);

}  // namespace tutti
