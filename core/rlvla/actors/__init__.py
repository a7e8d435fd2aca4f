"""The three kinds of actor: each does one call at a time and returns (receipt, payload...).

They know neither the controller nor each other, nor whether they run in a thread or on another machine.
"""
