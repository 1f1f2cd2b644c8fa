use onioncell::cell;

fn main() {
    // Before any runtime starts: cell-init forks, so it must have one thread.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == cell::INIT_COMMAND)
    {
        cell::init();
    }
}
