#pragma once

// Boost.Asio for the library's sources; never part of its interface. Asio 1.74 does not include
// <utility>, which it needs, so that header comes first. One thread runs each of our io_contexts
// and posts to it under its mutex. So Asio's extra fences, which gcc's thread sanitizer does not
// support, are not needed.
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
