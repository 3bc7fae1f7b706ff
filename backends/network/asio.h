#pragma once

// Boost.Asio as the sources of this folder use it: private to the library, never part of its
// interface. Asio 1.74 forgets <utility>, so that comes first. Each of our io_contexts is run by
// one thread and posted to under its mutex, so Asio's extra fences (which gcc's thread sanitizer
// does not know) are not needed.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#include <utility>
//
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

namespace tutti {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorStatus = boost::system::error_code;

}  // namespace tutti
