# help2man joins the lines of examples, but each line is a separate command.
/^\.SH EXAMPLES/,/^\.S/ {
/^[a-z]/i\
.br
}
