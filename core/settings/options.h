#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/store.h"
#include "tutti/base/log.h"
#include "tutti/collectives/collective.h"

namespace tutti {

struct Probe;  // backends/backend.h

/// The store of tutti-run, if it started this process. tutti-run reads there which rank left
/// because of an error. `rank` is the rank by which tutti-run knows this process. The fields are
/// set even if the ranks of this communicator meet in another store. An empty url means that there
/// is no such store.
struct LauncherStore {
  std::string url = {};     // where it is
  std::string secret = {};  // of that store
  int rank = -1;            // as tutti-run counts
};

/// Every setting of the library. Communicator::create completes what a program gives it. A field
/// that the program set stays; a field that holds its default takes what the launcher or its
/// variable says. Variables are read strictly: garbage and unknown TUTTI_ variables throw
/// Error(invalid_argument), which names the variable, its value, what is wanted and the nearest
/// name. To keep a default although its variable says otherwise, begin with from_environment().
struct Options {  // each field has an initializer, so that {.backend = "tcp"} gives no warning
  // The identity of this rank. -1 takes the value of tutti-run, mpirun, srun or torchrun, or rank 0
  // of 1 without a launcher. If size is 1, or the program sets both, no launcher is asked.
  int rank = -1;       // TUTTI_RANK
  int size = -1;       // TUTTI_SIZE
  int local_rank = 0;  // TUTTI_LOCAL_RANK
  int local_size = 1;  // TUTTI_LOCAL_SIZE
  // These describe the process, whatever rank it takes. launched_as is the rank under which its
  // launcher reports its death (-1: its rank). incarnation is how often that rank had been started
  // before.
  int launched_as = -1;  // filled from the environment
  int incarnation = 0;   // TUTTI_INCARNATION: set by a launcher that replaces a rank
  // Source of rank and size: "tutti-run", "Open MPI", "none", "explicit" (the program). While it is
  // empty, the environment has not been read. A program that sets "explicit" keeps it from being
  // read.
  std::string launcher = {};

  // How ranks find each other. `store` is "tcp://host:port" or "file:///folder" (a folder that does
  // not exist yet, or into which only this user may write). It is empty with one rank. With
  // serve_store, rank 0 serves the TCP store at that address itself, until its process ends.
  std::string store = {};                    // TUTTI_STORE
  bool serve_store = false;                  // TUTTI_SERVE_STORE: if no launcher serves the store
  std::shared_ptr<Store> store_object = {};  // in code only: threads of one process
  std::string job = "job";                   // TUTTI_JOB: separates jobs that share a store
  std::string secret = {};             // TUTTI_SECRET_FD (a descriptor) or TUTTI_SECRET, then unset
  std::string network_interface = {};  // TUTTI_INTERFACE: name or address; empty: chosen
  // TUTTI_TCP_SOCKETS: connections between two ranks; more help if the network limits each
  int tcp_sockets = 1;
  // TUTTI_TCP_CONGESTION: congestion control of the connections between ranks, as the kernel names
  // it ("bbr"); empty: the host's own, but over loopback cubic, which is faster there
  std::string tcp_congestion = {};
  std::string host = {};  // TUTTI_HOST: overrides which ranks count as one host

  std::string backend = "auto";  // TUTTI_BACKEND: auto, what tutti-doctor lists, or shm+ucx
  // TUTTI_BACKEND_PATH: folders of plugins, a:b, searched before the one of libtutti.so
  std::string backend_path = {};
  // TUTTI_BACKEND_LIBRARY: file of the library that a plugin loads by itself (nccl); empty: the
  // usual name
  std::string backend_library = {};
  std::string nccl_config = {};  // TUTTI_NCCL_CONFIG: settings of NCCL's communicators, a=1,b=2
  std::string algorithms = {};   // TUTTI_ALGORITHMS: score string, see Chooser
  // TUTTI_PROBE: where several hosts get the figures of their network. "auto": they use what is
  // saved, or measure and save. "always": they measure and save. "off": they use the fixed table. A
  // path: they do the same as for "auto", with this file instead of one in probe_folder.
  std::string probe = "auto";
  std::string probe_folder = {};  // from XDG_CACHE_HOME or HOME; empty: nothing is saved
  Determinism determinism = Determinism::fastest;  // TUTTI_DETERMINISM: fastest, run, rank_order
  int64_t segment_bytes = 1 << 20;                 // TUTTI_SEGMENT_BYTES: pipelined pieces

  int64_t fusion_bytes = 4 << 20;      // TUTTI_FUSION_BYTES: a bucket's size; 0: no fusion
  int64_t partition_bytes = 16 << 20;  // TUTTI_PARTITION_BYTES: larger tensors travel in pieces
  int64_t cache_capacity = 4096;       // TUTTI_CACHE_CAPACITY: tensors known by number; 0: off
  bool replay = true;                  // TUTTI_REPLAY: steady state without messages
  int replay_after = 3;                // TUTTI_REPLAY_AFTER: equal steps before a plan is locked
  /// TUTTI_MIXED_DEVICES: the tensors of one name may be on different devices, on one rank in host
  /// memory and on another on a GPU. All of them then travel through host memory.
  bool mixed_devices = false;
  /// TUTTI_CHECK_MEMORY: for debugging. A tensor whose memory was freed before its Work was done
  /// causes an error instead of a crash or foreign data. base/process/memory_check.h says what is
  /// detected.
  bool check_memory = false;

  double connect_timeout = 60;  // TUTTI_CONNECT_TIMEOUT, seconds: rendezvous
  double peer_timeout = 10;     // TUTTI_PEER_TIMEOUT, seconds without an answer: rank is silent
  double operation_timeout =
      0;                     // TUTTI_OPERATION_TIMEOUT, seconds; 0: a late rank is reported only
  double stall_warning = 2;  // TUTTI_STALL_WARNING, seconds until the first stall report
  double close_timeout = 5;  // TUTTI_CLOSE_TIMEOUT, seconds for goodbye, or a callback's end

  std::string timeline = {};               // TUTTI_TIMELINE: file for the Chrome trace; empty: none
  LogLevel log_level = LogLevel::warning;  // TUTTI_LOG: error, warning, info, debug
  LogSink log = {};  // in code only; null: standard error; must not call into Tutti

  /// In code only. The driving thread calls it with the name of each point that this rank reaches
  /// ("rendezvous", "negotiation", "pack", "transfer", "idle"). This rank answers no peer
  /// meanwhile, so if a call takes longer than peer_timeout, the rank counts as silent. It is for
  /// tests and tools that must act at such a point.
  std::function<void(std::string_view point)> observer = {};
  /// Calls the observer, if there is one.
  void observe(std::string_view point) const {
    if (observer) observer(point);
  }

  LauncherStore launcher_store = {};  // filled from the environment

  /// The source of each field: "TUTTI_RANK" -> "OMPI_COMM_WORLD_RANK". The functions that read the
  /// environment fill it, and describe_options() reads it. A field that is named here counts as set
  /// even if it holds its default.
  std::map<std::string, std::string> sources = {};

  /// Returns complete_options({}): the settings of this process, to look at or to change before
  /// create().
  static Options from_environment();
  /// Returns the options of one rank of `size` in this process. The ranks meet in a shared memory
  /// store. The environment is not read.
  static Options thread_rank(int rank, int size, std::shared_ptr<Store> store);
};

/// Returns `given` and fills the fields that it leaves unset from the launcher and the TUTTI_
/// variables. If `launcher` is set, this was done before, and `given` comes back unchanged. If the
/// launcher gives no store, all ranks must call this: rank 0 starts to serve one, until its process
/// ends, and sends its address to the others, within connect_timeout. In a store that the program
/// made, the first rank leaves a random secret if there is none; this secret is as safe as that
/// store. Takes the secret out of the environment; later calls remember it. Must not be called
/// while another thread changes the environment.
Options complete_options(Options given);

/// Throws Error(invalid_argument) for complete settings that do not fit each other.
void check_options(const Options& options);

/// Returns the meaning of Options::probe. Throws Error(invalid_argument) if it has none.
Probe probe_settings(const Options& options);

/// Returns the folders of Options::backend_path.
std::vector<std::string> backend_folders(const Options& options);

/// One line of `tutti-run --options`.
struct OptionRow {
  std::string variable;       // TUTTI_...
  std::string unit;           // unit of the value
  std::string default_value;  // in the form in which it is set
  std::string value;          // current value
  std::string source;         // "default", "environment", a launcher
  std::string meaning;        // a few words
};
/// Returns every setting with its value and its source ("default", "environment", a launcher).
std::vector<OptionRow> describe_options(const Options& options);

}  // namespace tutti
