"""``muxrl.serving.run(MyTrainer)``: a trainer's class as a server in a process of its own.

``pip install 'muxrl[serving]'`` brings what it needs, without ray and torch.
"""

from muxrl.servers.serving import main, run

__all__ = ["run"]

if __name__ == "__main__":
    main()
