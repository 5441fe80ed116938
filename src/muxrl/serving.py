"""Runs a trainer's class as a server in a separate process: ``muxrl.serving.run(MyTrainer)``.

``pip install 'muxrl[serving]'`` installs what it needs, without ray and torch.
"""

from muxrl.servers.serving import main, run

__all__ = ["run"]

if __name__ == "__main__":
    main()
