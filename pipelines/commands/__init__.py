"""Commands whose options are made from models: questions, plans and monitors."""
